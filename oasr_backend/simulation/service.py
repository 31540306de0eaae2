"""How long the simulated machine takes for a batch: a line, or a measured table. It knows nothing of who waits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.request import FRAMES_PER_SECOND
from oasr_backend.scheduler import CostTable

Service = Callable[[int, int], float]
"""Seconds of a batch, from its rows and its longest row in frames."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`fixed_s` a batch and `slope_s` a padded second of audio."""

    fixed_s: float
    slope_s: float

    def __call__(self, num_rows: int, longest: int) -> float:
        return self.fixed_s + self.slope_s * num_rows * longest / FRAMES_PER_SECOND

    def as_cost_table(self) -> CostTable:
        """Return a cost table that starts from this line."""
        return CostTable(self.fixed_s, self.slope_s / FRAMES_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of a cost table: the server's own, which it measured and learnt."""

    table: CostTable

    def __call__(self, num_rows: int, longest: int) -> float:
        return self.table.batch_time_s(num_rows, longest)

    def as_cost_table(self) -> CostTable:
        """Return a table of its own that starts where this one is."""
        return CostTable.from_dict(self.table.as_dict())


affine = Affine

SERVICES: dict[str, Affine] = {
    "cpu": affine(0.010, 0.0021),
    "gpu": affine(0.012, 0.00015),
    "linear": affine(0.005, 0.010),
}

LEAST_S, MOST_S = 1e-6, 1e6
"""What a batch of one second of audio may take."""


def read_service(text: str) -> Service:
    """Return the service that a name, a line "FIXED_MS+MS_A_PADDED_SECOND" or a cost table's JSON file describes.

    Raises ConfigError for anything else.
    """
    if text in SERVICES:
        return SERVICES[text]
    if Path(text).is_file():
        return Measured(read_cost_table(Path(text)))
    if "+" in text:
        return _read_line(text)
    raise ConfigError(
        f"service is {text!r}; it must be {', '.join(SERVICES)}, two numbers of ms as 10+2.1 (a batch, and a padded "
        "second of audio), or the path of a server's cost table (its cost_table_path): correct it"
    )


def read_cost_table(path: Path) -> CostTable:
    """Read the JSON file that a server keeps at its `cost_table_path`; raises ConfigError for anything else."""
    try:
        table = CostTable.from_dict(json.loads(path.read_text(encoding="utf-8")))
        time_s = table.batch_time_s(1, FRAMES_PER_SECOND)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ConfigError(
            f"{path} is no cost table ({type(error).__name__}: {error}): give the file that a server has written to "
            "its cost_table_path"
        ) from None
    if not LEAST_S <= time_s <= MOST_S:
        raise ConfigError(
            f"{path} gives a batch of 1 s of audio {time_s:g} s; it must be from {LEAST_S:g} to {MOST_S:g} s: have "
            "the server measure anew (delete its cost_table_path's file, and start it)"
        )
    return table


def _read_line(text: str) -> Affine:
    fixed_ms, _, slope_ms = text.partition("+")
    line = affine(_read_ms(text, fixed_ms) / 1000, _read_ms(text, slope_ms) / 1000)
    if not LEAST_S <= line(1, FRAMES_PER_SECOND) <= MOST_S:
        raise ConfigError(
            f"service is {text!r}; a batch of 1 s of audio must take from {LEAST_S * 1000:g} to {MOST_S * 1000:g} ms: "
            "correct it"
        )
    return line


def _read_ms(text: str, number: str) -> float:
    try:
        milliseconds = float(number)
    except ValueError:
        milliseconds = math.nan
    if not 0 <= milliseconds < math.inf:
        raise ConfigError(
            f"service is {text!r}; {number!r} is no number of ms from 0 up: give two of them as 10+2.1 (a batch, and "
            "a padded second of audio)"
        )
    return milliseconds
