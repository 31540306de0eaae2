"""The command behind scripts/serve.sh: start a tritonserver in the foreground, say when it is ready, stop it cleanly.

Knows signals and what a person reads; leaves finding and running the server to server.py.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from oasr_backend.triton.command_line import PRINT_COMMAND, parse_options
from oasr_backend.triton.installation import LaunchError
from oasr_backend.triton.server import TritonServer, describe_exit
from oasr_backend.triton.watch import ModelWatch

# What Triton prints on every machine without a GPU, where none of it matters.
NO_GPU_NOISE = re.compile(
    r"pinned memory pool will not be available|CUDA memory pool disabled|CudaDriverHelper has not been initialized"
    r"|Failed to initialize NVML|DCGM unable to start"
)
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
# One line each in Triton's log, with "\\n" for the line ends of a model's own message.
START_FAILURE = re.compile(
    r"(?P<load>failed to load '[^']*' version .*?)(\\n\\nAt:|\"?$)"
    r"|(?P<flag>(unrecognized|ambiguous) option .*|option .* (requires|doesn't allow) .*|Use of '.*' requires .*)"
    r"|Poll failed for (?P<poll>model directory '[^']*': (?!failed to read text proto).*?)\"?$"
    r"|\[libprotobuf ERROR [^\]]*\] (?P<config>Error parsing .*)"
)
# `timeout` and some supervisors send one signal twice within milliseconds; a person presses Ctrl+C again later.
MIN_SECOND_INTERRUPT_S = 1.0
FORCED_EXIT_CODE = 130
WATCH_INTERVAL_S = 0.5
READY_TIMEOUT_S = 7 * 24 * 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal or a fault; return the exit code, 0 after SIGTERM or SIGINT."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        server = TritonServer(parse_options(arguments), log=subprocess.PIPE)
        if PRINT_COMMAND in arguments:
            _say(server.shell_command())
            return 0
        return Launcher(server).run()
    except LaunchError as error:
        _complain(f"{error}.")
        return 1


class Launcher:
    """Runs one server in the foreground: its log to stderr, what a person waits for to stdout."""

    def __init__(self, server: TritonServer, *, has_gpu: bool | None = None) -> None:
        self._server = server
        self._filter = LogFilter(
            hide_noise=not (has_gpu or _has_gpu() or _is_verbose(server.options.extra_flags))
        )
        self._is_started = False
        self._stopping_since: float | None = None
        self._was_forced = False
        self._was_ready = self._is_ready = False
        self._starts_anew = False

    def run(self) -> int:
        """Start the server, stay until it has gone, and return the exit code for the shell."""
        installation = self._server.installation
        _say(f"Starting {installation.description} ({installation.binary})")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        code = self._run_once()
        while self._stopping_since is None and (self._starts_anew or self._has_crashed(code)):
            self._starts_anew = False
            code = self._run_once()
        return self._conclude(code)

    def _has_crashed(self, code: int) -> bool:
        """Tell whether a server that was ready ended by a signal that nobody here sent."""
        if code >= 0 or not self._is_ready:
            return False
        _complain(f"tritonserver has crashed ({describe_exit(code)}): it starts anew")
        return True

    def _run_once(self) -> int:
        """Start the server, stay until it has gone, and return its exit code."""
        server = self._server
        started_s = time.monotonic()
        self._is_ready = False
        server.start()
        self._is_started = True
        log = threading.Thread(target=self._copy_log, args=(server.process.stdout,), daemon=True)
        log.start()
        threading.Thread(target=self._announce, args=(started_s,), daemon=True).start()
        if self._stopping_since is not None:
            server.terminate()
        code = server.wait()
        log.join(timeout=10)
        return code

    def _copy_log(self, source: IO[bytes]) -> None:
        if self._filter.hide_noise:
            _say(
                "No NVIDIA GPU here: the models run on the CPU, Triton's warnings about one are left out"
            )
        for line in self._filter.keep(source):
            _write(line, sys.stderr)

    def _announce(self, started_s: float) -> None:
        try:
            self._server.wait_ready(READY_TIMEOUT_S)
        except LaunchError:
            return
        if self._stopping_since is None:
            self._was_ready = self._is_ready = True
            _say(ready_text(self._server, time.monotonic() - started_s))
            self._watch_models()

    def _watch_models(self) -> None:
        """Load a model anew whose process has died, and where that had accepted requests the whole server.

        Nobody can answer those any more: only the end of their connections tells their clients.
        """
        watch = ModelWatch(self._server.process.pid)
        while self._stopping_since is None and self._server.process.poll() is None:
            for model in watch.dead_models():
                _complain(f"the process of model {model} has died: it is loaded anew")
                if self._stopping_since is None and not self._server.reload(model):
                    _complain(
                        "requests that it had accepted are lost: tritonserver starts anew, which tells clients"
                    )
                    self._starts_anew = True
                    self._server.kill()
            time.sleep(WATCH_INTERVAL_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._stopping_since is None:
            self._stopping_since = now
            limit_s = self._server.options.exit_timeout_s
            _say(
                f"Stopping: answers what was accepted first, for at most {limit_s} s. Ctrl+C again gives that up"
            )
            if self._is_started:
                self._server.terminate()
        elif number == signal.SIGINT and now - self._stopping_since >= MIN_SECOND_INTERRUPT_S:
            self._was_forced = True
            self._server.kill()

    def _conclude(self, code: int) -> int:
        if self._was_forced:
            _say("Stopped at once: what was not yet answered is lost")
            return FORCED_EXIT_CODE
        if self._stopping_since is not None and (code == 0 or not self._was_ready):
            # Before it is ready tritonserver does not handle SIGTERM, and simply ends by it.
            _say("Stopped")
            return 0
        if self._stopping_since is not None:
            limit_s = self._server.options.exit_timeout_s
            _complain(
                f"tritonserver ended ({describe_exit(code)}) before every accepted request was answered, "
                f"for which it had {limit_s} s (--exit-timeout-secs)"
            )
            return code if code > 0 else 1
        reason = self._filter.failure or "its log above says why"
        when = "" if self._was_ready else " before it was ready"
        _complain(f"tritonserver ended{when} ({describe_exit(code)}): {reason}")
        return code if code > 0 else 1


class LogFilter:
    """Passes a server's log on, less what only frightens where there is no GPU; remembers why a start failed."""

    def __init__(self, *, hide_noise: bool) -> None:
        self.hide_noise = hide_noise
        self.failure: str | None = None

    def keep(self, lines: Iterable[bytes]) -> Iterable[str]:
        """Yield the lines to show."""
        for raw in lines:
            line = raw.decode(errors="replace")
            failure = START_FAILURE.search(line.rstrip())
            if failure:
                self.failure = next(filter(None, failure.groupdict().values())).replace("\\n", " ")
            if not (self.hide_noise and NO_GPU_NOISE.search(line)):
                yield line


def ready_text(server: TritonServer, elapsed_s: float) -> str:
    """Return the one line that says that the server is ready, after how long, and where."""
    places = {
        "http": f"HTTP http://{server.http_url}",
        "grpc": f"gRPC {server.grpc_url}",
        "metrics": f"metrics {server.metrics_url}",
    }
    served = [places[service] for service in server.options.endpoints()]
    return f"Ready after {elapsed_s:.1f} s: {', '.join(served)}. Ctrl+C stops it"


def _has_gpu() -> bool:
    return any(device.exists() for device in GPU_DEVICES)


def _is_verbose(flags: Iterable[str]) -> bool:
    return any(flag.startswith("--log-verbose") and not flag.endswith("=0") for flag in flags)


def _say(text: str) -> None:
    _write(f"{text}\n", sys.stdout)


def _complain(text: str) -> None:
    _write(f"error: {text}\n", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write a whole line; a reader that has gone must not end the server."""
    try:
        stream.write(text)
        stream.flush()
    except (BrokenPipeError, ValueError, RuntimeError):
        pass  # RuntimeError: a signal arrived while this thread was writing


if __name__ == "__main__":
    sys.exit(main())
