"""What was measured: a line of JSON a run, written at once, so that a sweep that was stopped goes on from there."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from oasr_backend.errors import ConfigError
from oasr_backend.files import write_whole

F = TypeVar("F")
"""The figures of a run: a dataclass of numbers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep.

    load: in times what the reference works off, 0 for a backlog of everything at once; or the number of streams.
    rate: requests a second; 0 for a backlog and for streams.
    """

    system: str
    lengths: str
    kind: str
    load: float
    rate: float
    repeat: int


class Results(Generic[F]):
    """The runs in one file."""

    def __init__(self, path: Path, figures: type[F]) -> None:
        self._path = path
        self._runs: dict[tuple[object, ...], tuple[Cell, F]] = {}
        if path.exists():
            self._read(figures)

    def _read(self, figures: type[F]) -> None:
        """Read what there is; the last line goes where it was not written whole."""
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            write_whole(self._path, whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                kept = json.loads(line)
                self._keep(Cell(**kept["cell"]), figures(**kept["figures"]))
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(
                    f"{self._path}:{number} holds no run ({error!r}): remove the line, or measure anew (no --resume)"
                ) from error

    def find(self, cell: Cell) -> F | None:
        """Return a run's figures where it is done; at whatever rate it was asked, since that follows from the load."""
        found = self._runs.get(_key(cell))
        return None if found is None else found[1]

    def add(self, cell: Cell, figures: F) -> None:
        """Keep a run."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"cell": asdict(cell), "figures": _dict(figures)}) + "\n")
        self._keep(cell, figures)

    def of(self, system: str, lengths: str, kind: str, load: float) -> list[F]:
        """Return the repeats of one case."""
        return [
            figures
            for cell, figures in self._runs.values()
            if (cell.system, cell.lengths, cell.kind, cell.load) == (system, lengths, kind, load)
        ]

    def __iter__(self) -> Iterator[tuple[Cell, F]]:
        return iter(self._runs.values())

    def _keep(self, cell: Cell, figures: F) -> None:
        self._runs[_key(cell)] = (cell, figures)


def write_csv(path: Path, results: Results[Any]) -> None:
    """Write a line a run."""
    runs = list(results)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(field.name for field in fields(Cell)), *_dict(runs[0][1])])
        for cell, figures in runs:
            writer.writerow([*asdict(cell).values(), *_dict(figures).values()])


def _dict(figures: Any) -> dict[str, float]:
    return asdict(figures)


def _key(cell: Cell) -> tuple[object, ...]:
    return cell.system, cell.lengths, cell.kind, cell.load, cell.repeat
