"""Print the system that worked off a backlog the fastest in a file of results: the peer at its best."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from oasr_backend.benchmark.figures import Figures
from oasr_backend.benchmark.results import Results
from oasr_backend.errors import ConfigError


def best_system(results: Results[Figures]) -> str:
    """Return the system with the greatest median throughput on a backlog."""
    runs: dict[str, list[float]] = {}
    for cell, figures in results:
        if cell.kind == "burst":
            runs.setdefault(cell.system, []).append(figures.throughput)
    if not runs:
        raise ConfigError("the file holds no backlog: run the sweep first")
    return max(runs, key=lambda system: median(runs[system]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: one path is needed: a file of results")
    try:
        print(best_system(Results(Path(sys.argv[1]), Figures)))
    except (ConfigError, OSError) as error:
        sys.exit(f"error: {error}")
