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
