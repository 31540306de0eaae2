"""How many cores there are to use, and how busy they have been."""

from __future__ import annotations

import os
from pathlib import Path


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Return the seconds that the machine's cores have worked since it started, for whomever."""
    name, *ticks = stat.read_text().split("\n", 1)[0].split()
    assert name == "cpu", "proc(5): the first line sums all cores"
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, ticks)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
