"""Start a real tritonserver on this machine, wait until it is ready, and stop it without leaving a process behind.

    with TritonServer(ServerOptions(model_repositories=("model_repository",)).with_free_ports()) as server:
        print(server.http_url)

Knows processes; knows nothing of requests, or of what a person sees (launcher.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from oasr_backend.triton import preflight
from oasr_backend.triton.drain import ModelControl, answers, idle_models
from oasr_backend.triton.installation import (
    Installation,
    LaunchError,
    check_stub,
    find_installation,
    known_flags,
    server_environment,
)
from oasr_backend.triton.options import ServerOptions, host_and_port

__all__ = ["LaunchError", "ServerOptions", "TritonServer"]

# A drained server that does not go by itself only waits for clients to hang up.
IDLE_EXIT_TIMEOUT_S = 4.0
# A dead model unloads at once, unless requests hang in it.
UNLOAD_TIMEOUT_S = 2.0
# Stubs notice within a second that their server is gone.
STUB_EXIT_TIMEOUT_S = 3.0
POLL_INTERVAL_S = 0.1

GRPC_STATES_FLAG = "--grpc-infer-allocation-pool-size"
GRPC_STATES = 4096
"""What tritonserver needs for a request over gRPC, it keeps for the next ones, for so many (8 by default), and frees
the rest. With 8, release 24.10 crashes now and then where many clients stream and go: a later request is found
overwritten, presumably by a thread that still uses what was freed, which was not seen. With 4096 it was gone."""

_server_numbers = itertools.count()
# Run by a Python that then becomes tritonserver: the kernel shall kill it when our process is killed. Not a preexec_fn,
# which crashes where a thread of ours (gRPC's, for one) holds what the forked child needs.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class TritonServer:
    """One tritonserver process and the stubs that it starts, in a process group of their own.

    `log` takes what server and models print: a file, subprocess.PIPE, or None for this process's own stderr. The
    thread that calls `start` must outlive the server, since the kernel ends the server with it.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        installation: Installation | None = None,
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | int | None = None,
    ) -> None:
        self.options = options
        self.installation = installation or find_installation()
        self._environment = server_environment(self.installation, environment)
        self._log = log
        self._shared_memory_prefix = f"oasr_{os.getpid()}_{next(_server_numbers)}_"
        self._control: ModelControl | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._was_ready = False
        self._was_ended_idle = False

    @property
    def http_url(self) -> str:
        """Return host:port, as Triton's HTTP client takes it."""
        return host_and_port(self.options.http_address, self.options.http_port)

    @property
    def grpc_url(self) -> str:
        """Return host:port, as Triton's gRPC client takes it."""
        return host_and_port(self.options.grpc_address, self.options.grpc_port)

    @property
    def metrics_url(self) -> str:
        """Return the whole address of the page of metrics."""
        address = self.options.metrics_address or self.options.http_address
        return f"http://{host_and_port(address, self.options.metrics_port)}/metrics"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the running tritonserver; raises RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError("the server was not started: call start() first")
        return self._process

    def check(self) -> None:
        """Raise LaunchError where this machine could not run the server."""
        preflight.check_model_repositories(self.options.model_repositories)
        endpoints = self.options.endpoints()
        reused = {name for name in endpoints if self.options.has_extra(f"--reuse-{name}-port")}
        preflight.check_ports(
            {name: place for name, place in endpoints.items() if name not in reused}
        )
        preflight.check_shared_memory(self.options.min_shared_memory_mib)
        check_stub(self.installation, self._environment)

    def command(self) -> list[str]:
        """Return the command line that `start` runs."""
        known = known_flags(self.installation, self._environment)
        command = self._plain_command(known)
        if ModelControl.is_possible(self.options, known):
            self._control = ModelControl()
            command += self._control.flags(self.options)
        return [
            *command,
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
        ]

    def shell_command(self) -> str:
        """Return what a shell runs to start the same server without us: nobody then starts it anew or drains it."""
        names = [name for name, text in self._environment.items() if os.environ.get(name) != text]
        variables = [f"{name}={shlex.quote(self._environment[name])}" for name in sorted(names)]
        command = self._plain_command(known_flags(self.installation, self._environment))
        return " ".join([*variables, shlex.join(command)])

    def _plain_command(self, known: frozenset[str]) -> list[str]:
        command = [str(self.installation.binary), *self.options.flags()]
        if self.installation.backend_directory and not self.options.has_extra(
            "--backend-directory"
        ):
            command.append(f"--backend-directory={self.installation.backend_directory}")
        # Release 24.10 has neither this flag nor the limit that it raises.
        if self.options.allow_http and "--http-max-input-size" in known:
            command.append(f"--http-max-input-size={self.options.http_max_input_bytes}")
        if GRPC_STATES_FLAG in known and not self.options.has_extra(GRPC_STATES_FLAG):
            command.append(f"{GRPC_STATES_FLAG}={GRPC_STATES}")
        return command

    def start(self) -> None:
        """Start the process after `check`; it is not ready yet. Raises LaunchError. Once it has gone: starts anew."""
        self.check()
        self._was_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *self.command()],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log is not None else None,
            # A group of its own: Ctrl+C must reach it through us, once, and never the stubs, which still work.
            start_new_session=True,
        )

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Return when every model is ready; raises LaunchError where the process ends or `timeout_s` pass before."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            code = self.process.poll()
            if code is not None:
                raise LaunchError(
                    f"tritonserver ended before it was ready ({describe_exit(code)}): its log says why"
                )
            if time.monotonic() >= deadline:
                raise LaunchError(
                    f"tritonserver was not ready after {timeout_s:g} s: its log says what it waits for"
                )
            time.sleep(POLL_INTERVAL_S)
        self._was_ready = True

    def is_ready(self) -> bool:
        """Say whether the server takes requests: by HTTP, or where that is off by an open gRPC port (opened last)."""
        if self.options.allow_http:
            return answers(f"http://{self.http_url}/v2/health/ready")
        return _listens(self.options.grpc_address, self.options.grpc_port)

    def shut_down(self) -> None:
        """Refuse new requests, answer the accepted ones, and end the process; does not wait for its stubs.

        Where the server was never ready, or a person chose Triton's model control, this is Triton's own SIGTERM.
        """
        deadline = time.monotonic() + self.options.exit_timeout_s
        is_empty = False
        if self._control is not None and self._was_ready:
            with contextlib.suppress(OSError):
                is_empty = self._control.unload_all(
                    self.http_url,
                    self.options.exit_timeout_s,
                    partial(idle_models, self.metrics_url),
                )
        self.process.terminate()
        patience_s = 0.0 if is_empty else deadline - time.monotonic()
        try:
            self.process.wait(max(patience_s, IDLE_EXIT_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self._was_ended_idle = is_empty
            self.kill()

    def reload(self, model: str) -> bool:
        """Load a model anew; return False where that cannot be, or requests hang in the old one."""
        if self._control is None:
            return False
        try:
            return self._control.reload(self.http_url, model, UNLOAD_TIMEOUT_S)
        except OSError:
            return False

    def terminate(self) -> None:
        """Begin to shut down and return at once; `wait` then tells how it went."""
        threading.Thread(target=self.shut_down, daemon=True).start()

    def kill(self) -> None:
        """End the server and its stubs at once: accepted requests are lost."""
        _signal_group(self.process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code once the server and its stubs are gone; 0 also where only idle clients kept it.

        Raises subprocess.TimeoutExpired where the server is there after `timeout_s` seconds.
        """
        code = self.process.wait(timeout_s)
        _end_group(self.process.pid)
        _remove_shared_memory(self._shared_memory_prefix)
        return 0 if self._was_ended_idle else code

    def stop(self) -> int:
        """Shut down and return the exit code, 0 where every accepted request was answered."""
        self.shut_down()
        return self.wait()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            self.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def describe_exit(code: int) -> str:
    """Say in words what a process's return code means."""
    return f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection(
            ("localhost" if address == "0.0.0.0" else address, port), timeout=5
        ).close()
    except OSError:
        return False
    return True


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; return False where none of it is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _end_group(group: int) -> None:
    """Wait for the stubs that a server left behind, and kill those that stay."""
    deadline = time.monotonic() + STUB_EXIT_TIMEOUT_S
    while _signal_group(group, 0):
        # As process 1 of a container we inherit the stubs, and must collect them to see them go.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-group, os.WNOHANG)
        if time.monotonic() >= deadline:
            _signal_group(group, signal.SIGKILL)
            deadline += STUB_EXIT_TIMEOUT_S
        time.sleep(0.02)


def _remove_shared_memory(prefix: str, directory: Path = preflight.SHARED_MEMORY) -> None:
    """Remove what a killed server left in /dev/shm, where nothing else would before the machine restarts."""
    for region in directory.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)
