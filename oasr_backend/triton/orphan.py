"""The end of a stub whose tritonserver is gone.

Triton's stub looks whether its server lives, but not while it waits for a lock in shared memory that the server has
died with: under load it stays for ever, and so does every thread of Python, whose lock it holds. So a process of its
own looks.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
"""A stub that notices by itself has gone by then."""

_WATCH = """
import os, select, signal, sys
server, stub, patience_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
try:
    stubs = os.pidfd_open(stub)
    try:
        select.select([os.pidfd_open(server), stubs], [], [])
    except ProcessLookupError:
        pass  # the server has gone before this began
    if not select.select([stubs], [], [], patience_s)[0]:
        signal.pidfd_send_signal(stubs, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def end_with_parent() -> None:
    """Have this process end, soon after the one that started it has."""
    python = _python()
    if python is None:
        log.warning("no python3 is on PATH: this process may stay where its tritonserver is killed")
        return
    words = [str(os.getppid()), str(os.getpid()), str(PATIENCE_S)]
    subprocess.Popen(
        [python, "-I", "-S", "-c", _WATCH, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _python() -> str | None:
    """Return an interpreter: inside a stub `sys.executable` is the stub."""
    beside = Path(sys.prefix) / "bin" / "python3"
    return str(beside) if beside.exists() else shutil.which("python3")
