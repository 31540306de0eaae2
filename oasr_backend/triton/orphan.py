"""The end of a stub whose tritonserver is gone.

Triton's stub looks whether its server lives, but not while it waits for a lock in shared memory that the server has
died with: under load it stays for ever, and so does every thread of Python, whose lock it holds. So a process of its
own looks. It also removes the memory that the two shared, which nobody else would.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from oasr_backend.triton.preflight import SHARED_MEMORY

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
"""A stub that notices by itself has gone by then."""

_WATCH = """
import os, select, signal, sys
server, stub, patience_s, region = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
try:
    stubs, servers = os.pidfd_open(stub), []
    try:
        servers = [os.pidfd_open(server)]
        select.select([*servers, stubs], [], [])
    except ProcessLookupError:
        pass  # the server has gone before this began
    if not select.select([stubs], [], [], patience_s)[0]:
        signal.pidfd_send_signal(stubs, signal.SIGKILL)
    if region and (not servers or select.select(servers, [], [], 0)[0]):
        os.unlink(region)
except (ProcessLookupError, FileNotFoundError):
    pass
"""

_REGION_WORD = 2
"""Where the name of the shared memory stands in a stub's command line."""


def end_with_parent() -> None:
    """Have this process end, soon after the one that started it has."""
    python = _python()
    if python is None:
        log.warning("no python3 is on PATH: this process may stay where its tritonserver is killed")
        return
    words = [str(os.getppid()), str(os.getpid()), str(PATIENCE_S), _region()]
    subprocess.Popen(
        [python, "-I", "-S", "-c", _WATCH, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _region() -> str:
    """Return the file of the memory that this stub shares with its server; '' where this is no stub."""
    words = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    name = words[_REGION_WORD] if len(words) > _REGION_WORD else ""
    path = SHARED_MEMORY / name
    return str(path) if name and "/" not in name and path.is_file() else ""


def _python() -> str | None:
    """Return an interpreter: inside a stub `sys.executable` is the stub."""
    beside = Path(sys.prefix) / "bin" / "python3"
    return str(beside) if beside.exists() else shutil.which("python3")
