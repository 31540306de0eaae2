"""How many cores there are to use, and which threads stand back on them."""

from __future__ import annotations

import os
import threading

MAX_NICE = 19


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def stand_back(nice: int) -> None:
    """Let the calling thread yield its core, for good, to threads that are less nice by so much (0 to 19).

    Who computes for milliseconds without a pause keeps those waiting that only have to pass something on. Linux has a
    niceness for each thread.
    """
    if nice:
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(MAX_NICE, now + nice))
