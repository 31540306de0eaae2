"""scripts/serve.sh as a person runs it: what it says, what it leaves behind, and what it never does twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from oasr_backend.triton.installation import find_installation
from oasr_backend.triton.options import free_ports
from tests.e2e.server_fixture import ROOT, TEST_MODELS, processes_of_group

SERVE = ROOT / "scripts" / "serve.sh"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
# Run inside a new network namespace: switch `lo` on by SIOCSIFFLAGS, as `ip link set lo up` does, and go on.
LOOPBACK_ONLY = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Launched:
    """serve.sh in a process of its own, with what it prints."""

    def __init__(self, process: subprocess.Popen[str], ports: tuple[int, int, int]) -> None:
        self.process = process
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Return the first line that holds `text` once it is printed."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (
            self.process.poll() is None or self._reader.is_alive()
        ):
            for line in list(self.lines):
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"{text!r} was not printed:\n{self.output}")

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Return the exit code when the process has gone and all it printed is read."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def tritonserver_pid(self) -> int:
        """Return the one child of the launcher."""
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        (pid,) = children
        return int(pid)


Launch = Callable[..., Launched]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start serve.sh on free ports for models of this folder; whatever a test leaves running is killed."""
    started: list[Launched] = []

    def start(models: str, *flags: str, prefix: tuple[str, ...] = (), **variables: str) -> Launched:
        http, grpc, metrics = free_ports(3)
        command = [
            *prefix,
            str(SERVE),
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
            f"--model-repository={TEST_MODELS / models}",
            *flags,
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**os.environ, **variables},
        )
        started.append(Launched(process, (http, grpc, metrics)))
        return started[-1]

    yield start
    for launched in started:
        launched.process.kill()
        launched.wait()


def ask(module, url: str, value: float) -> float:
    """Send one number to the model "late" and return its answer; the client hangs up after it."""
    patience = (
        {"network_timeout": 60.0, "connection_timeout": 60.0} if module is tritonclient.http else {}
    )
    with module.InferenceServerClient(url, **patience) as client:
        return ask_by(module, client, value)


def ask_by(module, client, value: float) -> float:
    samples = np.full((1, 4), value, np.float32)
    tensor = module.InferInput("X", samples.shape, "FP32")
    tensor.set_data_from_numpy(samples)
    return float(client.infer("late", [tensor]).as_numpy("Y")[0, 0])


def test_the_printed_command_starts_the_same_server_by_hand(launch):
    printed = launch("echo", "--print-command")
    assert printed.wait() == 0
    [command] = printed.lines
    by_hand = subprocess.Popen(
        ["sh", "-c", f"exec env {command}"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://localhost:{printed.http_port}/v2/models/echo/ready"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_ok(url):
            assert by_hand.poll() is None, "it ended"
            assert time.monotonic() < deadline, "it was not ready in time"
            time.sleep(0.1)
        by_hand.terminate()
        assert by_hand.wait(STOP_TIMEOUT_S) == 0
    finally:
        by_hand.kill()


def is_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_says_when_it_is_ready_and_where_and_stops_with_exit_code_0(launch):
    server = launch("echo")
    line = server.wait_for("Ready after")
    place = (
        f"HTTP http://localhost:{server.http_port}, gRPC localhost:{server.grpc_port}, "
        f"metrics http://localhost:{server.metrics_port}/metrics"
    )
    assert line.endswith(f" s: {place}. Ctrl+C stops it\n")
    for path in (f"{server.http_port}/v2/health/ready", f"{server.metrics_port}/metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{path}") as reply:
            assert reply.status == 200
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.is_server_ready()

    group = server.tritonserver_pid()
    assert len(processes_of_group(group)) == 2, "tritonserver and one stub"
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.lines[-1] == "Stopped\n"
    assert processes_of_group(group) == []
    assert list(Path("/dev/shm").glob(f"oasr_{server.process.pid}_*")) == []


def test_model_finds_this_checkouts_package(launch):
    assert (
        launch("echo").wait_for("oasr_backend is")
        == f"oasr_backend is {ROOT}/oasr_backend/__init__.py\n"
    )


def test_ctrl_c_reaches_the_server_once_although_the_terminal_signals_the_whole_group(launch):
    server = launch("echo", prefix=("setsid",))
    server.wait_for("Ready after")
    os.killpg(server.process.pid, signal.SIGINT)
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.wait() == 0
    assert server.lines[-1] == "Stopped\n"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_everything_accepted_is_answered_before_the_server_goes(launch, protocol):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    server = launch("late")
    server.wait_for("Ready after")
    url = f"127.0.0.1:{server.http_port if protocol == 'http' else server.grpc_port}"
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, module, url, value) for value in range(8)]
        time.sleep(1.0)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert not all(answer.done() for answer in answers), "the signal came under load"
        assert [answer.result() for answer in answers] == list(range(8))
    assert server.wait() == 0


def test_connections_that_clients_keep_open_do_not_delay_the_stop(launch):
    server = launch("late")
    server.wait_for("Ready after")
    with (
        tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as over_http,
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as over_grpc,
    ):
        assert ask_by(tritonclient.http, over_http, 1.0) == 1.0
        over_grpc.start_stream(callback=lambda result, error: None)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(15.0) == 0


def test_second_ctrl_c_stops_at_once(launch):
    server = launch("late")
    server.wait_for("Ready after")
    group = server.tritonserver_pid()
    with ThreadPoolExecutor(40) as pool:
        answers = [
            pool.submit(ask, tritonclient.grpc, f"127.0.0.1:{server.grpc_port}", value)
            for value in range(40)
        ]
        time.sleep(0.5)
        server.process.send_signal(signal.SIGINT)
        time.sleep(1.5)
        server.process.send_signal(signal.SIGINT)
        assert server.wait(5.0) == 130
        assert server.lines[-1] == "Stopped at once: what was not yet answered is lost\n"
        assert any(answer.exception() for answer in answers)
    assert processes_of_group(group) == []


def test_stop_that_lasts_longer_than_the_exit_timeout_is_an_error(launch):
    server = launch("late", "--exit-timeout-secs=1")
    server.wait_for("Ready after")
    with ThreadPoolExecutor(40) as pool:
        answers = [
            pool.submit(ask, tritonclient.grpc, f"127.0.0.1:{server.grpc_port}", value)
            for value in range(40)
        ]
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(15.0) == 1
        assert any(answer.exception() for answer in answers)
    assert server.lines[-1].startswith("error: tritonserver ended (")
    assert server.lines[-1].endswith(
        ") before every accepted request was answered, for which it had 1 s (--exit-timeout-secs)\n"
    )


def test_killed_model_does_not_keep_the_server_from_stopping(launch):
    server = launch("echo")
    server.wait_for("Ready after")
    group = server.tritonserver_pid()
    (stub,) = set(processes_of_group(group)) - {group}
    os.kill(stub, signal.SIGKILL)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(20.0) == 0


def kill_model(server: Launched) -> None:
    group = server.tritonserver_pid()
    (stub,) = set(processes_of_group(group)) - {group}
    os.kill(stub, signal.SIGKILL)


def test_model_whose_process_was_killed_is_not_ready_and_then_loaded_anew(launch):
    server = launch("late")
    server.wait_for("Ready after")
    group = server.tritonserver_pid()
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        kill_model(server)
        wait_until(lambda: not client.is_model_ready("late"))
        assert client.is_server_live()
        wait_until(lambda: client.is_model_ready("late"))
        assert ask_by(tritonclient.http, client, 7.0) == 7.0
    assert server.wait_for("has died") == (
        "error: the process of model late has died: it is loaded anew\n"
    )
    assert server.tritonserver_pid() == group
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_clients_whose_requests_died_with_the_model_are_told_at_once_and_the_server_comes_back(
    launch,
):
    server = launch("late")
    server.wait_for("Ready after")
    url = f"127.0.0.1:{server.grpc_port}"
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, tritonclient.grpc, url, value) for value in range(8)]
        wait_until(lambda: sum(answer.done() for answer in answers) == 1)
        kill_model(server)
        errors = [answer.exception(30) for answer in answers]
    lost = [error for error in errors if error is not None]
    assert len(lost) >= 6
    assert {error.status() for error in lost} == {"StatusCode.UNAVAILABLE"}
    server.wait_for("tritonserver starts anew")
    wait_until(lambda: sum("Ready after" in line for line in list(server.lines)) == 2)
    assert ask(tritonclient.grpc, url, 7.0) == 7.0
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_server_that_crashed_is_started_anew(launch):
    server = launch("echo")
    server.wait_for("Ready after")
    os.kill(server.tritonserver_pid(), signal.SIGFPE)
    assert server.wait_for("has crashed") == (
        "error: tritonserver has crashed (ended by SIGFPE): it starts anew\n"
    )
    wait_until(lambda: sum("Ready after" in line for line in list(server.lines)) == 2)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def test_new_requests_are_refused_while_the_accepted_ones_are_answered(launch):
    server = launch("late")
    server.wait_for("Ready after")
    url = f"127.0.0.1:{server.grpc_port}"
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, tritonclient.grpc, url, value) for value in range(4)]
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(
            tritonclient.utils.InferenceServerException, match="'late' has no available versions"
        ):
            ask(tritonclient.grpc, url, 9.0)
        assert [answer.result() for answer in answers] == list(range(4))
    assert server.wait() == 0


def test_clients_cannot_unload_the_models(launch):
    server = launch("echo")
    server.wait_for("Ready after")
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        with pytest.raises(
            tritonclient.utils.InferenceServerException, match="This API is restricted"
        ):
            client.unload_model("echo")
        assert client.is_model_ready("echo")


def test_killed_launcher_takes_the_server_and_its_models_with_it(launch):
    server = launch("echo")
    server.wait_for("Ready after")
    group = server.tritonserver_pid()
    server.process.kill()
    deadline = time.monotonic() + 10
    while processes_of_group(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of_group(group) == []


def test_stop_before_the_server_is_ready_is_clean(launch):
    server = launch("echo")
    server.wait_for("loading: echo:1")
    group = server.tritonserver_pid()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert processes_of_group(group) == []


def test_model_that_fails_to_load_is_the_last_thing_said_and_exits_with_1(launch):
    server = launch("broken")
    assert server.wait() == 1
    assert server.lines[-1] == (
        "error: tritonserver ended before it was ready (exit code 1): failed to load 'broken' version 1: Internal: "
        "RuntimeError: weights.bin is missing. Put it beside model.py\n"
    )


def test_flag_that_tritonserver_does_not_know_is_the_last_thing_said(launch):
    server = launch("echo", "--no-such-flag=1")
    assert server.wait() == 1
    assert server.lines[-1] == (
        "error: tritonserver ended before it was ready (exit code 1): unrecognized option '--no-such-flag=1'\n"
    )


def test_port_in_use_is_refused_before_tritonserver_starts(launch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = launch("echo", f"--http-port={port}")
        assert server.wait() == 1
    assert server.lines[-1] == (
        f"error: Port {port} on 0.0.0.0 is already in use. Stop what listens there, or choose another: --http-port N.\n"
    )
    assert "tritonserver.cc" not in server.output


def test_gpu_warnings_do_not_frighten_where_there_is_no_gpu(launch):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    server = launch("echo")
    server.wait_for("Ready after")
    assert "No NVIDIA GPU here" in server.output
    assert not [
        word
        for word in ("NVML", "DCGM", "CudaDriverHelper", "pinned memory")
        if word in server.output
    ]


def test_machines_own_tritonserver_is_preferred_and_runs_its_own_backends(launch, tmp_path):
    wheel = find_installation()
    libraries = ":".join(map(str, wheel.library_directories))
    backends = tmp_path / "tritonserver" / "backends"
    binary = tmp_path / "tritonserver" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    backends.symlink_to(wheel.backend_directory)
    binary.write_text(f'#!/bin/sh\nexec {wheel.binary} --backend-directory={backends} "$@"\n')
    binary.chmod(0o755)
    server = launch("echo", PATH=f"{binary.parent}:{os.environ['PATH']}", LD_LIBRARY_PATH=libraries)
    assert server.wait_for("Starting") == f"Starting this machine's own tritonserver ({binary})\n"
    server.wait_for("Ready after")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_second_start_installs_nothing_and_needs_no_network(launch):
    launch("echo").wait_for("Ready after")  # whatever was to be installed is there now
    stamps = {path: path.stat().st_mtime_ns for path in (ROOT / ".venv").glob(".installed-*")}
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "https_proxy": "http://127.0.0.1:9",
    }
    started_s = time.monotonic()
    server = launch("echo", **offline, prefix=without_network())
    server.wait_for("Ready after")
    assert time.monotonic() - started_s < 15
    assert "Installing" not in server.output
    assert stamps == {
        path: path.stat().st_mtime_ns for path in (ROOT / ".venv").glob(".installed-*")
    }


def without_network() -> tuple[str, ...]:
    """Return a command prefix that leaves only the loopback device, where this machine permits that; else nothing."""
    prefix = ("unshare", "--map-root-user", "--net", sys.executable, "-c", LOOPBACK_ONLY)
    permitted = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if permitted else ()
