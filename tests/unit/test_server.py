"""How a tritonserver is found, checked and told what to do; the real one is started in tests/e2e."""

from __future__ import annotations

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oasr_backend.triton import installation as installations
from oasr_backend.triton import preflight
from oasr_backend.triton.command_line import parse_options
from oasr_backend.triton.drain import ModelControl
from oasr_backend.triton.installation import (
    PYTHON_VERSION,
    Installation,
    LaunchError,
    assemble_backend,
    check_stub,
    native_binary,
    server_environment,
)
from oasr_backend.triton.launcher import LogFilter
from oasr_backend.triton.options import ServerOptions, free_ports, host_and_port
from tests.fakes import FakeClock

ROOT = Path(__file__).resolve().parents[2]


def executable(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def fake_installation(**changes: object) -> Installation:
    values: dict[str, object] = {
        "description": "a test's tritonserver",
        "binary": Path("/nowhere/tritonserver"),
        "backend_directory": None,
        "stub": None,
    }
    return Installation(**{**values, **changes})  # type: ignore[arg-type]


class TestFinding:
    def test_tritonserver_on_path_comes_before_the_container_and_the_wheel(
        self, tmp_path, monkeypatch
    ):
        on_path = executable(tmp_path / "bin" / "tritonserver")
        in_container = executable(tmp_path / "opt" / "tritonserver")
        monkeypatch.setenv("PATH", str(on_path.parent))
        assert native_binary(in_container) == on_path
        monkeypatch.setenv("PATH", str(tmp_path))
        assert native_binary(in_container) == in_container
        in_container.unlink()
        assert native_binary(in_container) is None

    def test_machines_own_tritonserver_keeps_its_own_backends_and_libraries(
        self, tmp_path, monkeypatch
    ):
        binary = executable(tmp_path / "bin" / "tritonserver")
        stub = executable(tmp_path / "backends" / "python" / "triton_python_backend_stub")
        monkeypatch.setenv("PATH", str(binary.parent))
        found = installations.find_installation()
        assert found == Installation("this machine's own tritonserver", binary, None, stub, ())

    def test_missing_tritonserver_is_one_error_with_both_remedies(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(installations, "_wheel_directory", lambda: None)
        monkeypatch.setattr(installations, "native_binary", lambda: None)
        with pytest.raises(LaunchError) as caught:
            installations.find_installation()
        assert str(caught.value) == (
            f"No tritonserver on PATH, in /opt/tritonserver/bin or in {sys.prefix}. "
            "Start with ./scripts/serve.sh, which installs one, or run: pip install 'oasr-backend[server]'"
        )


class TestBackendDirectory:
    @pytest.fixture
    def wheel(self, tmp_path):
        wheel = tmp_path / "pytriton" / "tritonserver"
        for version in ("3.9", "3.10", PYTHON_VERSION):
            executable(
                wheel / "python_backend_stubs" / version / "triton_python_backend_stub",
                f"echo {version}",
            )
        backend = wheel / "backends" / "python"
        (backend / "__pycache__").mkdir(parents=True)
        (backend / "libtriton_python.so").write_bytes(b"library")
        return wheel

    def test_holds_the_backend_beside_the_stub_of_the_running_python(self, wheel, tmp_path):
        python = assemble_backend(wheel, tmp_path / "cache" / "backends") / "python"
        assert sorted(path.name for path in python.iterdir()) == [
            "libtriton_python.so",
            "triton_python_backend_stub",
        ]
        assert PYTHON_VERSION in (python / "triton_python_backend_stub").read_text()
        assert os.access(python / "triton_python_backend_stub", os.X_OK)

    def test_many_starts_at_once_agree_on_one_folder_and_leave_nothing_else(self, wheel, tmp_path):
        target = tmp_path / "cache" / "backends"
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: assemble_backend(wheel, target), range(8))) == {target}
        assert [path.name for path in target.parent.iterdir()] == ["backends"]

    def test_python_without_a_stub_is_refused_by_name(self, wheel, tmp_path, monkeypatch):
        monkeypatch.setattr(installations, "PYTHON_VERSION", "3.14")
        with pytest.raises(LaunchError) as caught:
            assemble_backend(wheel, tmp_path / "cache" / "backends")
        assert str(caught.value) == (
            f"This tritonserver cannot run models in Python 3.14, only in 3.9, 3.10, {PYTHON_VERSION}. "
            "Remove .venv and start with one of these: PYTHON=python3.11 ./scripts/serve.sh"
        )


class TestEnvironment:
    def test_stub_finds_this_environment_and_this_checkout_first(self):
        found = fake_installation(library_directories=(Path("/wheel.libs"), Path("/python/lib")))
        base = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/theirs", "HOME": "/root"}
        assert server_environment(found, base) == {
            "PATH": f"{sys.prefix}/bin:/usr/bin",
            "LD_LIBRARY_PATH": "/wheel.libs:/python/lib:/theirs",
            "PYTHONPATH": str(ROOT),
            "HOME": "/root",
        }
        assert base["PATH"] == "/usr/bin"

    def test_machines_own_tritonserver_gets_no_library_path(self):
        assert "LD_LIBRARY_PATH" not in server_environment(
            fake_installation(), {"PATH": "/usr/bin"}
        )

    @pytest.mark.parametrize(
        ("libraries", "text"),
        [
            (
                {f"libpython{PYTHON_VERSION}.so.1.0": "not found"},
                (
                    f"Python {PYTHON_VERSION} has no shared library on this machine "
                    f"(libpython{PYTHON_VERSION}.so.1.0), which tritonserver needs to run models. "
                    f"Run: sudo apt-get install libpython{PYTHON_VERSION}"
                ),
            ),
            (
                {"libpython3.8.so.1.0": "/usr/lib/libpython3.8.so.1.0"},
                (
                    f"a test's tritonserver runs models in Python 3.8, but this environment ({sys.prefix}) is Python "
                    f"{PYTHON_VERSION}. Remove .venv and start with PYTHON=python3.8 ./scripts/serve.sh"
                ),
            ),
            (
                {"libcudart.so.12": "not found"},
                (
                    "tritonserver needs shared libraries that this machine lacks: libcudart.so.12. Install the "
                    "packages that bring them (apt-file search NAME finds them), or use NVIDIA's container"
                ),
            ),
        ],
    )
    def test_stub_that_would_not_start_is_refused_with_the_remedy(
        self, monkeypatch, libraries, text
    ):
        monkeypatch.setattr(installations, "_loaded_libraries", lambda *_: libraries)
        with pytest.raises(LaunchError) as caught:
            check_stub(fake_installation(stub=Path("/stub")), {})
        assert str(caught.value) == text

    def test_stub_with_all_its_libraries_is_accepted(self):
        check_stub(fake_installation(stub=Path(sys.executable)), os.environ)


class TestPreflight:
    def test_small_shared_memory_names_its_size_and_the_flag_that_raises_it(
        self, tmp_path, monkeypatch
    ):
        # What Docker gives: 64 MiB in 4 KiB blocks.
        docker = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _: docker)
        with pytest.raises(LaunchError) as caught:
            preflight.check_shared_memory(512, tmp_path)
        assert str(caught.value) == (
            f"{tmp_path} has 64 MiB free of 64 MiB, and 512 MiB are needed: audio reaches the model through it, an "
            f"hour of it taking 220 MiB. In Docker add --shm-size=1g; elsewhere run 'mount -o remount,size=1G "
            f"{tmp_path}'; for short clips only, start with --min-shm-mib 64"
        )
        preflight.check_shared_memory(64, tmp_path)

    def test_port_in_use_is_named_with_its_flag(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(LaunchError) as caught:
                preflight.check_ports({"grpc": ("127.0.0.1", port)})
        assert str(caught.value) == (
            f"Port {port} on 127.0.0.1 is already in use. Stop what listens there, or choose another: --grpc-port N"
        )

    def test_one_port_for_two_services_is_refused(self):
        (port,) = free_ports(1)
        with pytest.raises(LaunchError) as caught:
            preflight.check_ports({"http": ("127.0.0.1", port), "grpc": ("127.0.0.1", port)})
        assert (
            str(caught.value)
            == f"--http-port and --grpc-port are both {port}. Give each its own port"
        )

    def test_missing_and_empty_model_repositories_are_refused(self, tmp_path):
        with pytest.raises(LaunchError) as caught:
            preflight.check_model_repositories([str(tmp_path / "nothing")])
        assert str(caught.value) == (
            f"Model repository {tmp_path}/nothing does not exist. Name a folder of models: --model-repository DIR"
        )
        model = tmp_path / "asr_offline"
        model.mkdir()
        (model / "config.pbtxt").touch()
        with pytest.raises(LaunchError) as caught:
            preflight.check_model_repositories([str(model)])
        assert str(caught.value) == (
            f"Model repository {model} is a model. Name the folder that holds it: --model-repository {tmp_path}"
        )
        (model / "config.pbtxt").unlink()
        model.rmdir()
        (tmp_path / "README").write_text("no model")
        with pytest.raises(LaunchError) as caught:
            preflight.check_model_repositories([str(tmp_path)])
        assert str(caught.value) == (
            f"Model repository {tmp_path} holds no model. It must hold a folder for each model, with config.pbtxt "
            "and a version folder such as 1/ in it"
        )

    def test_model_repository_in_a_cloud_is_left_to_tritonserver(self):
        preflight.check_model_repositories(["s3://bucket/models"])


class TestCommandLine:
    def test_own_flags_become_options_and_all_others_pass_through_in_order(self):
        options = parse_options(
            [
                "--http-port",
                "9000",
                "--log-verbose",
                "1",
                "--grpc-port=9001",
                "--model-repository=m",
                "--id=x",
            ]
        )
        assert options == ServerOptions(
            ("m",), http_port=9000, grpc_port=9001, extra_flags=("--log-verbose", "1", "--id=x")
        )

    def test_checkouts_own_models_are_served_by_default(self):
        assert parse_options([]).model_repositories == (str(ROOT / "model_repository"),)

    def test_stray_argument_is_refused(self):
        with pytest.raises(LaunchError) as caught:
            parse_options(["models"])
        assert str(caught.value) == (
            "Argument 'models' is not a flag. A model repository is named by --model-repository DIR"
        )

    @pytest.mark.parametrize(
        "arguments", [["--http-port", "0"], ["--http-port", "65536"], ["--allow-grpc", "maybe"]]
    )
    def test_impossible_value_is_refused(self, arguments, capsys):
        with pytest.raises(SystemExit) as caught:
            parse_options(arguments)
        assert caught.value.code == 2
        assert arguments[0] in capsys.readouterr().err

    def test_flags_name_every_service_and_switch_off_the_others(self):
        options = ServerOptions(
            ("a", "b"), allow_grpc=False, http_address="127.0.0.1", extra_flags=("--id=x",)
        )
        assert options.flags() == [
            "--model-repository=a",
            "--model-repository=b",
            "--http-port=8000",
            "--http-address=127.0.0.1",
            "--metrics-port=8002",
            "--metrics-address=127.0.0.1",
            "--allow-grpc=false",
            "--exit-timeout-secs=600",
            "--id=x",
        ]

    def test_addresses_are_said_as_a_client_on_this_machine_uses_them(self):
        assert host_and_port("0.0.0.0", 8000) == "localhost:8000"
        assert host_and_port("10.0.0.7", 8000) == "10.0.0.7:8000"
        assert host_and_port("::1", 8000) == "[::1]:8000"


class FakeTriton:
    """Answers the model-control API: `states` are the index's answers in turn, the last of them for ever."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.unloaded: list[str] = []
        self.loaded: list[str] = []
        self.secrets: set[str] = set()

    def post(self, url: str, secret: str) -> bytes:
        self.secrets.add(secret)
        if url.endswith("/unload"):
            self.unloaded.append(url.split("/")[-2])
            return b""
        if url.endswith("/load"):
            self.loaded.append(url.split("/")[-2])
            return b""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return json.dumps(
            [{"name": "b", "state": state}, {"name": "a", "state": "UNAVAILABLE"}]
        ).encode()


class TestDrain:
    EVERY_FLAG = frozenset({"--http-restricted-api", "--grpc-restricted-protocol"})

    def test_every_model_is_unloaded_and_awaited(self):
        triton, clock = FakeTriton("READY", "UNLOADING", "UNLOADING", "UNAVAILABLE"), FakeClock(0.0)
        control = ModelControl(triton.post)
        assert control.unload_all("localhost:1", 10.0, clock=clock, sleep=clock.advance)
        assert triton.unloaded == ["a", "b"]
        assert clock() == pytest.approx(0.2)

    def test_wait_ends_after_the_exit_timeout(self):
        triton, clock = FakeTriton("UNLOADING"), FakeClock(0.0)
        assert not ModelControl(triton.post).unload_all(
            "localhost:1", 3.0, clock=clock, sleep=clock.advance
        )
        assert clock() == pytest.approx(3.0, abs=0.11)

    def test_a_model_that_has_answered_all_is_not_awaited_for_ever(self):
        triton, clock = FakeTriton("UNLOADING"), FakeClock(0.0)
        control = ModelControl(triton.post)
        assert control.unload_all(
            "localhost:1", 60.0, lambda: {"a", "b"}, clock=clock, sleep=clock.advance
        )
        assert clock() == pytest.approx(5.0, abs=0.11)

    def test_a_model_that_has_not_is(self):
        triton, clock = FakeTriton("UNLOADING"), FakeClock(0.0)
        control = ModelControl(triton.post)
        assert not control.unload_all(
            "localhost:1", 60.0, lambda: {"a"}, clock=clock, sleep=clock.advance
        )

    def test_a_model_is_loaded_anew_once_it_is_unloaded(self):
        triton, clock = FakeTriton("UNLOADING", "UNAVAILABLE"), FakeClock(0.0)
        control = ModelControl(triton.post)
        assert control.reload("localhost:1", "b", 10.0, clock=clock, sleep=clock.advance)
        assert (triton.unloaded, triton.loaded) == (["b"], ["b"])

    def test_a_model_in_which_requests_hang_is_not_loaded_anew(self):
        triton, clock = FakeTriton("UNLOADING"), FakeClock(0.0)
        control = ModelControl(triton.post)
        assert not control.reload("localhost:1", "b", 2.0, clock=clock, sleep=clock.advance)
        assert triton.loaded == []
        assert clock() == pytest.approx(2.0, abs=0.11)

    def test_secret_is_on_the_command_line_and_in_every_request(self):
        triton = FakeTriton("UNAVAILABLE")
        control = ModelControl(triton.post)
        control.unload_all("localhost:1", 1.0)
        (secret,) = triton.secrets
        assert control.flags(ServerOptions(("m",))) == [
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-restricted-api=model-repository:oasr-control={secret}",
            f"--grpc-restricted-protocol=model-repository:oasr-control={secret}",
        ]

    def test_model_control_that_a_person_chose_stays_theirs(self):
        chosen = ServerOptions(("m",), extra_flags=("--model-control-mode=poll",))
        assert not ModelControl.is_possible(chosen, self.EVERY_FLAG)
        assert ModelControl.is_possible(ServerOptions(("m",)), self.EVERY_FLAG)

    def test_release_that_cannot_restrict_model_control_is_stopped_by_signal_alone(self):
        assert not ModelControl.is_possible(ServerOptions(("m",)), frozenset())


class TestLog:
    NOISE = (
        (
            b'W1129 20:02:00.1 5 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned memory '
            b'pool will not be available: CUDA driver version is insufficient for CUDA runtime version"\n'
        ),
        b'I1129 20:02:00.1 5 cuda_memory_manager.cc:117] "CUDA memory pool disabled"\n',
        b'E1129 20:02:00.1 5 server.cc:241] "CudaDriverHelper has not been initialized."\n',
        b"Error: Failed to initialize NVML\n",
        b'W1129 20:02:02.1 5 metrics.cc:798] "DCGM unable to start: DCGM initialization error"\n',
    )
    FAILURE = (
        b"E1129 20:37:36.1 9 model_lifecycle.cc:642] \"failed to load 'broken' version 1: Internal: RuntimeError: "
        b'weights.bin is missing.\\nPut it beside model.py\\n\\nAt:\\n  /m/model.py(3): initialize\\n"\n'
    )

    def test_gpu_warnings_are_left_out_only_where_there_is_no_gpu(self):
        assert list(LogFilter(hide_noise=True).keep(self.NOISE)) == []
        assert len(list(LogFilter(hide_noise=False).keep(self.NOISE))) == len(self.NOISE)

    def test_every_other_line_passes_as_it_is(self):
        lines = [
            b'E1129 server.cc] "CUDA error: out of memory"\n',
            b"a model's own words \xff\n",
            self.FAILURE,
        ]
        assert list(LogFilter(hide_noise=True).keep(lines)) == [
            line.decode(errors="replace") for line in lines
        ]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (
                b'[libprotobuf ERROR text_format.cc:335] Error parsing text-format Config: 4:2: no field "x".\n',
                'Error parsing text-format Config: 4:2: no field "x".',
            ),
            (
                b"E1201 manager.cc:1460] \"Poll failed for model directory 'a': size must be positive\"\n",
                "model directory 'a': size must be positive",
            ),
            (
                b"Use of '--load-model' requires setting '--model-control-mode=explicit' as well\n",
                "Use of '--load-model' requires setting '--model-control-mode=explicit' as well",
            ),
        ],
    )
    def test_reason_that_stands_far_above_the_end_is_kept_for_the_last_line(self, line, reason):
        log = LogFilter(hide_noise=True)
        list(log.keep([line, b"+---+\n"]))
        assert log.failure == reason

    def test_where_the_file_cannot_be_read_the_reason_is_what_is_wrong_in_it(self):
        log = LogFilter(hide_noise=True)
        lines = [
            b"[libprotobuf ERROR text_format.cc:337] Error parsing text-format Config: 43:25: Expected integer\n",
            b"E1201 manager.cc:1460] \"Poll failed for model directory 'a': failed to read text proto from a\"\n",
        ]
        list(log.keep(lines))
        assert log.failure == "Error parsing text-format Config: 43:25: Expected integer"

    def test_reason_of_a_failed_load_is_kept_for_the_last_line(self):
        log = LogFilter(hide_noise=True)
        list(
            log.keep([self.FAILURE, b"I1129 model_lifecycle.cc:777] \"failed to load 'broken'\"\n"])
        )
        assert log.failure == (
            "failed to load 'broken' version 1: Internal: RuntimeError: weights.bin is missing. Put it beside model.py"
        )

    def test_flag_that_tritonserver_does_not_know_is_the_reason(self):
        log = LogFilter(hide_noise=True)
        list(log.keep([b"/x/tritonserver: unrecognized option '--bogus'\n"]))
        assert log.failure == "unrecognized option '--bogus'"


class TestLocks:
    @pytest.mark.parametrize(("smaller", "larger"), [("base", "serve"), ("serve", "test")])
    def test_smaller_lock_is_part_of_the_larger_one(self, smaller, larger):
        assert self.pins(smaller) < self.pins(larger)

    def test_serving_needs_no_torch(self):
        assert not {
            pin for pin in self.pins("serve") if pin.startswith(("torch", "tensorrt", "nvidia-cu"))
        }

    @staticmethod
    def pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        return {line.split()[0] for line in lines if "==" in line}
