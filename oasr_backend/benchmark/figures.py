"""What is said of a run: latencies, throughput, lag of the generator, and texts that differ from those without load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np

from oasr_backend.benchmark.ruler import Answer

PERCENTILES = (25, 50, 90, 99)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's figures, or the medians of several.

    p25_s ... max_s: from the intended time to the answer. lag_p99_s: how late the generator was.
    wait_s: the mean time in queues, as the system itself counts it; nan where it does not.
    throughput: answers a second, from the first intended time to the last answer.
    errors: requests without a text. differing: texts that are not those without load.
    """

    requests: float
    p25_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    wait_s: float
    throughput: float
    lag_p99_s: float
    errors: float
    differing: float


NAMES = tuple(field.name for field in fields(Figures))


def figures_of(
    answers: Sequence[Answer], expected: Sequence[str], wait_s: float = math.nan
) -> Figures:
    """Return a run's figures. expected: the text of each utterance without load, by its number."""
    good = [answer for answer in answers if answer.error is None]
    latencies = np.array([answer.latency_s for answer in good] or [np.nan])
    span_s = max(answer.done_s for answer in answers) - min(answer.due_s for answer in answers)
    p25, p50, p90, p99 = (float(value) for value in np.percentile(latencies, PERCENTILES))
    return Figures(
        requests=len(answers),
        p25_s=p25,
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        max_s=float(latencies.max()),
        wait_s=wait_s,
        throughput=len(good) / span_s,
        lag_p99_s=float(np.percentile([answer.lag_s for answer in answers], 99)),
        errors=len(answers) - len(good),
        differing=sum(answer.text != expected[answer.utterance] for answer in good),
    )


def median_of(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure over repeats, but the sum of what must be 0."""
    values: dict[str, Any] = {name: median(getattr(r, name) for r in runs) for name in NAMES}
    values["errors"] = sum(run.errors for run in runs)
    values["differing"] = sum(run.differing for run in runs)
    return Figures(**values)


def ratio_of(runs: Sequence[Figures], of_peer: Sequence[Figures], name: str) -> float:
    """Return a figure in times a peer's: the median of the ratios of the same repeats, which ran one after the other.

    What drifts on the machine from repeat to repeat is in both.
    """
    ratios: list[float] = [
        getattr(run, name) / getattr(peer, name)
        for run, peer in zip(runs, of_peer, strict=False)  # a stopped sweep has less of one
    ]
    return median(ratios)


def spread_of(runs: Sequence[Figures], name: str) -> tuple[float, float]:
    """Return the least and the greatest of a figure over repeats."""
    values = [getattr(run, name) for run in runs]
    return min(values), max(values)
