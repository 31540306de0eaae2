"""What was measured: a line of JSON a run, written at once, so that a sweep that was stopped goes on from there."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from oasr_backend.benchmark.figures import NAMES, Figures


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep.

    load: in times what the reference works off; 0 for a backlog of everything at once.
    rate: requests a second; 0 for a backlog.
    """

    system: str
    lengths: str
    kind: str
    load: float
    rate: float
    repeat: int


class Results:
    """The runs in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: dict[tuple[object, ...], tuple[Cell, Figures]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                kept = json.loads(line)
                self._keep(Cell(**kept["cell"]), Figures(**kept["figures"]))

    def find(self, cell: Cell) -> Figures | None:
        """Return a run's figures where it is done; at whatever rate it was asked, since that follows from the load."""
        found = self._runs.get(_key(cell))
        return None if found is None else found[1]

    def add(self, cell: Cell, figures: Figures) -> None:
        """Keep a run."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"cell": asdict(cell), "figures": asdict(figures)}) + "\n")
        self._keep(cell, figures)

    def of(self, system: str, lengths: str, kind: str, load: float) -> list[Figures]:
        """Return the repeats of one case."""
        return [
            figures
            for cell, figures in self._runs.values()
            if (cell.system, cell.lengths, cell.kind, cell.load) == (system, lengths, kind, load)
        ]

    def __iter__(self) -> Iterator[tuple[Cell, Figures]]:
        return iter(self._runs.values())

    def _keep(self, cell: Cell, figures: Figures) -> None:
        self._runs[_key(cell)] = (cell, figures)


def write_csv(path: Path, results: Results) -> None:
    """Write a line a run."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(field.name for field in fields(Cell)), *NAMES])
        for cell, figures in results:
            writer.writerow([*asdict(cell).values(), *asdict(figures).values()])


def _key(cell: Cell) -> tuple[object, ...]:
    return cell.system, cell.lengths, cell.kind, cell.load, cell.repeat
