"""Empty a running tritonserver: refuse new requests, and wait until every accepted one is answered; reload a model.

SIGTERM alone does not do that. tritonserver 2.51 then first waits, taking more requests all the while, for clients to
close their HTTP connections, which one idle keep-alive connection puts off until the exit timeout; and an open gRPC
stream keeps it for ever. Unloading the models is exact: each goes when its last answer is out. That needs Triton's
explicit model control, here behind a secret that no client has.
"""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from typing import Any

from oasr_backend.triton.options import ServerOptions

HEADER = "oasr-control"
POLL_INTERVAL_S = 0.1
UNLOAD_PATIENCE_S = 5.0
# Loading a large model takes its time.
REPLY_TIMEOUT_S = 600
_IN_WORK = ("READY", "LOADING", "UNLOADING")
# A proxy that the environment names is not for a server on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ModelControl:
    """Unloads the models of one server, whose command line must have held `flags`."""

    def __init__(self, post: Callable[[str, str], bytes] | None = None) -> None:
        self._secret = secrets.token_hex(16)
        self._post = post or _post

    @staticmethod
    def is_possible(options: ServerOptions, known_flags: frozenset[str]) -> bool:
        """Say whether the server can be emptied this way: not where a person chose another model control."""
        theirs = (
            "--model-control-mode",
            "--load-model",
            "--http-restricted-api",
            "--grpc-restricted-protocol",
        )
        return (
            options.allow_http
            and not any(options.has_extra(flag) for flag in theirs)
            and {"--http-restricted-api", "--grpc-restricted-protocol"} <= known_flags
        )

    def flags(self, options: ServerOptions) -> list[str]:
        """Return the flags that load every model at start and leave unloading to us."""
        restriction = f"model-repository:{HEADER}={self._secret}"
        flags = [
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-restricted-api={restriction}",
        ]
        return [
            *flags,
            *([f"--grpc-restricted-protocol={restriction}"] if options.allow_grpc else []),
        ]

    def unload_all(
        self,
        http_url: str,
        timeout_s: float,
        idle_models: Callable[[], Collection[str]] = tuple,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Unload every model; return True once all accepted requests are answered, False after `timeout_s` seconds.

        idle_models: names those that have answered whatever they accepted. After UNLOAD_PATIENCE_S they are not waited
            for: tritonserver 2.51 now and then never unloads a model of sequences, some of which were left without END.
        Raises OSError where the server does not answer.
        """
        started = clock()
        for name in sorted({model["name"] for model in self._index(http_url)}):
            self._post(f"http://{http_url}/v2/repository/models/{name}/unload", self._secret)
        while in_work := {m["name"] for m in self._index(http_url) if m.get("state") in _IN_WORK}:
            if clock() >= started + timeout_s:
                return False
            if clock() >= started + UNLOAD_PATIENCE_S and in_work <= set(idle_models()):
                return True
            sleep(POLL_INTERVAL_S)
        return True

    def reload(
        self,
        http_url: str,
        model: str,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Unload and load a model; return False where it is not unloaded after `timeout_s`: requests hang in it.

        Raises OSError where the server does not answer, or the model does not load.
        """
        deadline = clock() + timeout_s
        address = f"http://{http_url}/v2/repository/models/{model}"
        self._post(f"{address}/unload", self._secret)
        while any(m["name"] == model and m.get("state") in _IN_WORK for m in self._index(http_url)):
            if clock() >= deadline:
                return False
            sleep(POLL_INTERVAL_S)
        self._post(f"{address}/load", self._secret)
        return True

    def _index(self, http_url: str) -> Sequence[dict[str, Any]]:
        index = self._post(f"http://{http_url}/v2/repository/index", self._secret)
        models: Sequence[dict[str, Any]] = json.loads(index)
        return models


def _post(url: str, secret: str) -> bytes:
    request = urllib.request.Request(url, data=b"{}", headers={HEADER: secret}, method="POST")
    with _opener.open(request, timeout=REPLY_TIMEOUT_S) as reply:
        body: bytes = reply.read()
        return body


def answers(url: str) -> bool:
    """Say whether a GET of `url` is answered with 200."""
    try:
        with _opener.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def idle_models(metrics_url: str) -> set[str]:
    """Return the models that say on the metrics port that they have answered all that they accepted."""
    try:
        with _opener.open(metrics_url, timeout=5) as reply:
            text = reply.read().decode()
    except (urllib.error.URLError, OSError):
        return set()
    return set(re.findall(r'^oasr_backlog_requests\{model="([^"]*)"\} 0$', text, re.MULTILINE))
