"""How long the simulated machine takes for a batch: a line, or a measured table. It knows nothing of who waits."""

from __future__ import annotations

import json
import math
import re
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


affine = Affine

SERVICES: dict[str, Affine] = {
    "cpu": affine(0.010, 0.0021),
    "gpu": affine(0.012, 0.00015),
    "linear": affine(0.005, 0.010),
}

_LINE = re.compile(r"([0-9.]+)\+([0-9.]+)")


def read_service(text: str) -> Service:
    """Return the service that a name, a line "FIXED_MS+MS_A_PADDED_SECOND" or a cost table's JSON file describes.

    Raises ConfigError for anything else.
    """
    if text in SERVICES:
        return SERVICES[text]
    line = _LINE.fullmatch(text)
    if line is not None:
        return _read_line(text, *line.groups())
    if Path(text).is_file():
        return read_cost_table(Path(text)).batch_time_s
    raise ConfigError(
        f"service is {text!r}; it must be {', '.join(SERVICES)}, two numbers of ms as 10+2.1 (a batch, and a padded "
        "second of audio), or the path of a cost table as JSON: correct it"
    )


def read_cost_table(path: Path) -> CostTable:
    """Read what `CostTable.as_dict` gave, written as JSON; raises ConfigError for anything else."""
    try:
        table = CostTable.from_dict(json.loads(path.read_text(encoding="utf-8")))
        is_sane = 0 < table.batch_time_s(1, FRAMES_PER_SECOND) < math.inf
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no cost table ({type(error).__name__}: {error}): export one with CostTable.as_dict"
        ) from None
    if not is_sane:
        raise ConfigError(
            f"{path} gives a batch of 1 s no time above 0 and below inf: export it anew"
        )
    return table


def _read_line(text: str, fixed_ms: str, slope_ms: str) -> Affine:
    try:
        line = affine(float(fixed_ms) / 1000, float(slope_ms) / 1000)
    except ValueError:
        line = affine(0.0, 0.0)
    if line.fixed_s <= 0 and line.slope_s <= 0:
        raise ConfigError(
            f"service is {text!r}; it must be two numbers of ms, one of them above 0: correct it"
        )
    return line
