"""A process that ends with the one that started it, though it holds Python's lock for ever."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from oasr_backend.triton.preflight import SHARED_MEMORY

CHILD = """
import ctypes, time
from oasr_backend.triton import orphan
orphan.PATIENCE_S = 0.1
orphan.end_with_parent()
print("ready", flush=True)
ctypes.PyDLL(None).pause()  # as a stub that waits for a lock: no other thread of Python runs
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_it_ends_soon_after_its_parent_was_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    child = os.pidfd_open(int(parent.stdout.readline()))
    assert not select.select([child], [], [], 0)[0], "it lives"
    parent.kill()
    parent.wait()
    assert select.select([child], [], [], 30)[0], "it has gone"


@pytest.fixture
def region():
    path = SHARED_MEMORY / f"test_{os.getpid()}_region"
    path.write_bytes(b"shared")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("dies", ["parent", "child"])
def test_the_memory_that_both_shared_goes_with_its_server_and_not_before(tmp_path, region, dies):
    script = tmp_path / "stub.py"
    script.write_text(CHILD)
    # As Triton starts a stub: the memory's name is the second word after the program's.
    start = PARENT.replace('[sys.executable, "-c", sys.argv[1]]', "[sys.executable, *sys.argv[1:]]")
    before = watchers()
    parent = subprocess.Popen(
        [sys.executable, "-c", start, str(script), region.name], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    [watcher] = watchers() - before
    ended = os.pidfd_open(watcher)
    os.kill(parent.pid if dies == "parent" else child, signal.SIGKILL)
    assert select.select([ended], [], [], 30)[0]
    parent.wait()
    assert region.exists() == (dies == "child")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_watches_a_process_that_has_gone_before_its_parent(number):
    before = watchers()
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    [watcher] = watchers() - before
    ended = os.pidfd_open(watcher)
    child.send_signal(number)
    child.wait()
    assert select.select([ended], [], [], 30)[0]


def watchers():
    """Return the numbers of the processes that watch one."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if "pidfd_send_signal" in (place / "cmdline").read_text():
                found.add(int(place.name))
    return found
