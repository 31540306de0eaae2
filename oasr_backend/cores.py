"""How many cores there are to use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))
