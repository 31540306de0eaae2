"""A real tritonserver for tests: on free ports, with its log in a file, and with a check that it went cleanly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oasr_backend.triton.options import ServerOptions
from oasr_backend.triton.server import LaunchError, TritonServer

ROOT = Path(__file__).resolve().parents[2]
SERVED_MODELS = ROOT / "model_repository"
TEST_MODELS = Path(__file__).resolve().parent / "models"
NUM_LOG_LINES_SHOWN = 60


class RunningServer:
    """A started server as tests use it: its addresses, its log so far, and the server itself."""

    def __init__(self, server: TritonServer, log_path: Path) -> None:
        self.server = server
        self.log_path = log_path
        self.http_url = server.http_url
        self.grpc_url = server.grpc_url
        self.metrics_url = server.metrics_url

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-NUM_LOG_LINES_SHOWN:])

    def stop(self) -> int:
        """Stop it now, accepted requests answered, and return its exit code; the fixture then finds it gone."""
        return self.server.stop()


@contextmanager
def running_server(
    model_repository: Path,
    log_path: Path,
    extra_flags: Sequence[str] = (),
    *,
    exit_timeout_s: int = 120,
) -> Iterator[RunningServer]:
    """Serve a model repository; on leaving, stop the server and hold that it exits with 0 and leaves no process."""
    options = ServerOptions(
        model_repositories=(str(model_repository),),
        exit_timeout_s=exit_timeout_s,
        extra_flags=tuple(extra_flags),
    ).with_free_ports()
    with log_path.open("wb") as log:
        server = TritonServer(options, log=log)
        running = RunningServer(server, log_path)
        server.start()
        try:
            server.wait_ready()
            yield running
        except LaunchError as error:
            raise AssertionError(f"{error}\n{running.log_tail()}") from error
        finally:
            code = server.stop()
        assert code == 0, f"tritonserver exited with {code}\n{running.log_tail()}"
        assert processes_of_group(running.pid) == [], "the server left a process behind"


def processes_of_group(group: int) -> list[int]:
    """Return the ids of the living processes of a process group."""
    return [pid for pid, stat in _all_stats() if int(stat[2]) == group and stat[0] != "Z"]


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    """Yield every process's id with the fields of /proc/PID/stat that follow its name: state, parent, group ..."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has just gone
        yield int(path.parent.name), text.rpartition(")")[2].split()
