"""What arrives: when, and how long. Everything is drawn from a seed, or read from a trace (trace.py).

It knows nothing of schedulers or services.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Mode:
    """A stretch of a workload: so many requests, `rate` a second in the mean (inf: all at once), of those lengths."""

    num_requests: int
    rate: float
    lengths: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives, as a description from which every seed draws its own arrivals.

    modes: one after the other; more than one is a drift.
    tenants: names and their shares of the arrivals; none at all where it is empty.
    trace: arrivals as they are, in place of modes; then every seed gives the same.
    is_backlog: everything waits from the start, whatever the rates.
    """

    modes: tuple[Mode, ...] = ()
    tenants: tuple[tuple[str, float], ...] = ()
    trace: tuple[Arrival, ...] = ()
    is_backlog: bool = False

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return the arrivals of one seed, in order of time."""
        arrivals = list(self.trace) or joined(
            [
                poisson(mode.num_requests, mode.rate, LENGTHS[mode.lengths], _seed(seed, index))
                for index, mode in enumerate(self.modes)
            ]
        )
        if self.tenants:
            arrivals = _with_tenants(arrivals, self.tenants, random.Random(f"tenants {seed}"))
        if self.is_backlog:
            arrivals = [replace(arrival, time_s=0.0) for arrival in arrivals]
        return arrivals

    def as_backlog(self) -> Workload:
        """Return the same requests, all waiting from the start."""
        return replace(self, is_backlog=True)


def steady(num_requests: int, rate: float, lengths: str) -> Workload:
    """Return Poisson arrivals of one kind."""
    return Workload((Mode(num_requests, rate, lengths),))


def load_drift(
    num_requests: int, light_rate: float, overload_rate: float, lengths: str
) -> Workload:
    """Return light load, overload, light load: a quarter, a half and a quarter of the requests."""
    quarter = num_requests // 4
    light = Mode(quarter, light_rate, lengths)
    return Workload((light, Mode(num_requests - 2 * quarter, overload_rate, lengths), light))


def length_drift(num_requests: int, rate: float) -> Workload:
    """Return LibriSpeech-like lengths, then uniform ones, at one rate: half of the requests each."""
    half = num_requests // 2
    return Workload((Mode(half, rate, "librispeech"), Mode(num_requests - half, rate, "uniform")))


def poisson(num_requests: int, rate: float, length: Length, seed: int) -> list[Arrival]:
    """Return arrivals at `rate` a second in the mean, independent of each other; at once where it is inf."""
    rng = random.Random(seed)
    time_s = 0.0
    arrivals = []
    for _ in range(num_requests):
        time_s += rng.expovariate(rate) if rate < math.inf else 0.0
        arrivals.append(Arrival(time_s, round(length(rng) * FRAMES_PER_SECOND)))
    return arrivals


def burst(num_requests: int, length: Length, seed: int) -> list[Arrival]:
    """Return arrivals all at once."""
    return poisson(num_requests, math.inf, length, seed)


def joined(parts: Sequence[Sequence[Arrival]]) -> list[Arrival]:
    """Return workloads one after the other: the modes of a drift."""
    arrivals: list[Arrival] = []
    for part in parts:
        start_s = arrivals[-1].time_s if arrivals else 0.0
        arrivals += [replace(a, time_s=start_s + a.time_s) for a in part]
    return arrivals


def _with_tenants(
    arrivals: Sequence[Arrival], tenants: Sequence[tuple[str, float]], rng: random.Random
) -> list[Arrival]:
    names, shares = zip(*tenants, strict=True)
    drawn = rng.choices(names, shares, k=len(arrivals))
    return [replace(a, tenant=name) for a, name in zip(arrivals, drawn, strict=True)]


def _seed(seed: int, index: int) -> int:
    # The first mode of a seed is that seed's own, so that a workload of one mode is what `poisson` gives.
    return seed + 1_000_003 * index
