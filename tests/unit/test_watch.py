"""A model's process is dead when Triton has left it uncollected for two looks."""

import pytest

from oasr_backend.triton.watch import ModelWatch

SERVER = 100
STUB = "/venv/triton_python_backend_stub\0/repository/asr_offline/1/model.py\0prefix\0"


class Processes:
    """A /proc of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.watch = ModelWatch(SERVER, folder)

    def put(self, pid, state="S", parent=SERVER, command=STUB):
        entry = self.folder / str(pid)
        entry.mkdir(exist_ok=True)
        (entry / "stat").write_text(f"{pid} (name with ) in it) {state} {parent} {parent} 0")
        (entry / "cmdline").write_text("" if state == "Z" else command)

    def drop(self, pid):
        for name in ("stat", "cmdline"):
            (self.folder / str(pid) / name).unlink()


@pytest.fixture
def processes(tmp_path):
    return Processes(tmp_path)


def test_a_living_model_is_not_reported(processes):
    processes.put(101)
    assert [processes.watch.dead_models() for _ in range(3)] == [[], [], []]


def test_a_dead_model_is_reported_at_the_second_look_and_once(processes):
    processes.put(101)
    processes.watch.dead_models()
    processes.put(101, state="Z")
    assert [processes.watch.dead_models() for _ in range(4)] == [[], ["asr_offline"], [], []]


def test_a_model_that_triton_ended_and_collected_is_not_reported(processes):
    processes.put(101)
    processes.watch.dead_models()
    processes.put(101, state="Z")
    assert processes.watch.dead_models() == []
    processes.drop(101)
    assert processes.watch.dead_models() == []


def test_other_processes_are_nobodys_model(processes):
    processes.put(101, command="/bin/sh\0-c\0sleep\0")
    processes.put(102, parent=7)
    processes.watch.dead_models()
    processes.put(101, state="Z")
    processes.put(102, parent=7, state="Z")
    assert [processes.watch.dead_models() for _ in range(3)] == [[], [], []]


def test_the_process_that_takes_a_dead_ones_place_is_watched(processes):
    processes.put(101)
    processes.watch.dead_models()
    processes.put(101, state="Z")
    processes.watch.dead_models()
    processes.put(102)
    assert processes.watch.dead_models() == ["asr_offline"]
    processes.put(102, state="Z")
    assert [processes.watch.dead_models() for _ in range(2)] == [[], ["asr_offline"]]
