"""What an experiment claims, and whether what was measured bears it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oasr_backend.simulation.cases import Lab
from oasr_backend.simulation.figures import Figures

PERCENTILES = ("p50_s", "p90_s", "p99_s")


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that holds or not, and the measurement that says so."""

    text: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"{'PASS' if self.holds else 'FAIL'}  {self.text}: {self.measured}"


Experiment = Callable[[Lab], Iterator["Claim | str"]]
"""Runs in a lab and yields claims, and lines to print between them."""


def at_most(text: str, values: Mapping[str, float], limit: float) -> Claim:
    """Claim that every value is at most `limit`, naming the greatest."""
    name = max(values, key=lambda key: values[key])
    return Claim(f"{text} at most {limit:g}", values[name] <= limit, _shown(name, values[name]))


def below(text: str, values: Mapping[str, float], limit: float = 1.0) -> Claim:
    """Claim that every value is below `limit`, naming the greatest."""
    name = max(values, key=lambda key: values[key])
    return Claim(f"{text} below {limit:g}", values[name] < limit, _shown(name, values[name]))


def between(text: str, values: Mapping[str, float], low: float, high: float) -> Claim:
    """Claim that every value is from `low` to `high`."""
    least, greatest = min(values.values()), max(values.values())
    holds = low <= least and greatest <= high
    return Claim(f"{text} from {low:g} to {high:g}", holds, f"{least:.3f} to {greatest:.3f}")


def ratios(ours: Figures, theirs: Figures) -> dict[str, float]:
    """Return ours in parts of theirs, by percentile."""
    return {name: getattr(ours, name) / getattr(theirs, name) for name in PERCENTILES}


def as_ratios(values: Mapping[str, float]) -> str:
    """Return "p50 / p90 / p99" as text."""
    return " / ".join(f"{values[name]:.2f}" for name in PERCENTILES)


def seconds(figures: Figures) -> str:
    """Return "p50 / p90 / p99" in seconds as text."""
    return " / ".join(f"{getattr(figures, name):.3f}" for name in PERCENTILES)


def change(ours: float, theirs: float) -> str:
    """Return how much ours is above or below theirs, in percent."""
    return f"{100 * (ours / theirs - 1):+.0f} %"


def _shown(name: str, value: float) -> str:
    return f"{value:.3f} ({name})"
