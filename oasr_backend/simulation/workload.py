"""What arrives: when, and how long. Everything is drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from oasr_backend.request import FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Arrival:
    """One utterance: when it arrives, in seconds, and its length in frames of 10 ms."""

    time_s: float
    num_frames: int
    tenant: str | None = None


Length = Callable[[random.Random], float]
"""Draws a length in seconds."""


def librispeech_like(rng: random.Random) -> float:
    """Lognormal, median 5.8 s, sigma 0.75, clipped to 1.3 to 35 s."""
    return min(35.0, max(1.3, rng.lognormvariate(math.log(5.8), 0.75)))


def ljspeech_like(rng: random.Random) -> float:
    """Normal, 6.57 s ± 2.18 s, clipped to 1.5 to 10.1 s."""
    return min(10.1, max(1.5, rng.gauss(6.57, 2.18)))


def uniform(rng: random.Random) -> float:
    """Uniform, 1.3 to 35 s."""
    return rng.uniform(1.3, 35.0)


LENGTHS: dict[str, Length] = {
    "librispeech": librispeech_like,
    "ljspeech": ljspeech_like,
    "uniform": uniform,
}


def poisson(num_requests: int, rate: float, length: Length, seed: int) -> list[Arrival]:
    """Return arrivals at `rate` a second in the mean, independent of each other."""
    return list(
        _at_gaps(num_requests, length, random.Random(seed), lambda rng: rng.expovariate(rate))
    )


def burst(num_requests: int, length: Length, seed: int) -> list[Arrival]:
    """Return arrivals all at once."""
    return list(_at_gaps(num_requests, length, random.Random(seed), lambda _: 0.0))


def joined(parts: Sequence[Sequence[Arrival]]) -> list[Arrival]:
    """Return workloads one after the other: the modes of a drift."""
    arrivals: list[Arrival] = []
    for part in parts:
        start_s = arrivals[-1].time_s if arrivals else 0.0
        arrivals += [Arrival(start_s + a.time_s, a.num_frames, a.tenant) for a in part]
    return arrivals


def _at_gaps(
    num_requests: int, length: Length, rng: random.Random, gap: Callable[[random.Random], float]
) -> Iterator[Arrival]:
    time_s = 0.0
    for _ in range(num_requests):
        time_s += gap(rng)
        yield Arrival(time_s, _frames(length(rng)))


def _frames(duration_s: float) -> int:
    return round(duration_s * FRAMES_PER_SECOND)
