"""What is said of a run: latencies, padding, delays in batches, and what each tenant got."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import mean

from oasr_backend.simulation.run import Run, Served, percentile


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One tenant's part.

    arrived_share: its part of all audio. served_share: its part of what was served until half of all audio was, the
    time in which tenants compete.
    """

    tenant: str
    arrived_share: float
    served_share: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run, or the means of several: seconds where the name says so.

    padding: frames computed for each frame of audio. throughput: requests a second.
    deepest_delay: see `deepest_delay`. jain: Jain's index of the tenants' served audio, 1 where all got the same.
    """

    p25_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    wait_p50_s: float
    padding: float
    throughput: float
    deepest_delay: float
    jain: float
    num_switches: float
    tenants: tuple[TenantFigures, ...] = ()


NUMBERS = tuple(f.name for f in fields(Figures) if f.name != "tenants")


def figures_of(run: Run, cap: int) -> Figures:
    """Return a run's figures; `cap` is the batch size that its scheduler was given."""
    latencies = sorted(s.latency_s for s in run.served)
    tenants = tenant_figures(run.served)
    return Figures(
        p25_s=percentile(latencies, 25),
        p50_s=percentile(latencies, 50),
        p90_s=percentile(latencies, 90),
        p99_s=percentile(latencies, 99),
        max_s=latencies[-1],
        wait_p50_s=percentile([s.wait_s for s in run.served], 50),
        padding=run.padding_ratio,
        throughput=run.throughput,
        deepest_delay=deepest_delay(run.served, cap),
        jain=jain([t.served_share for t in tenants]),
        num_switches=run.num_switches,
        tenants=tenants,
    )


def mean_of(runs: Sequence[Figures]) -> Figures:
    """Return the means over runs of one case."""
    numbers = {name: mean(getattr(run, name) for run in runs) for name in NUMBERS}
    names = sorted({t.tenant for run in runs for t in run.tenants})
    return Figures(
        **numbers,
        tenants=tuple(
            _mean_tenant(name, [t for run in runs for t in run.tenants if t.tenant == name])
            for name in names
        ),
    )


def deepest_delay(served: Sequence[Served], cap: int) -> int:
    """Return how many batches later than in arrival order a request ran, at most.

    In arrival order, in full batches, the requests that wait before one fill `waiting before // cap` batches; what
    counts is how many more than those ran between its arrival and its own batch. A policy that runs smaller batches
    counts more of them.
    """
    began_s = sorted(s.began_s for s in served)
    batches_began_s = sorted({s.batch: s.began_s for s in served}.values())
    deepest = 0
    for index, one in enumerate(served):
        arrived_s = one.arrival.time_s
        waiting_before = max(0, index - bisect_left(began_s, arrived_s))
        first_batch = bisect_left(batches_began_s, arrived_s)
        deepest = max(deepest, one.batch - first_batch - waiting_before // cap)
    return deepest


def jain(amounts: Sequence[float]) -> float:
    """Return Jain's index, (sum x)² / (n · sum x²): 1 where all are equal, 1 / n where one has everything."""
    squares = sum(x * x for x in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def tenant_figures(served: Sequence[Served]) -> tuple[TenantFigures, ...]:
    """Return each tenant's figures by name; those that name none are "-", all together."""
    total = sum(s.arrival.num_frames for s in served)
    competed = _until_half(served, total)
    half = sum(s.arrival.num_frames for s in competed)
    by_name: dict[str, list[Served]] = {}
    for one in served:
        by_name.setdefault(one.arrival.tenant or "-", []).append(one)
    return tuple(
        TenantFigures(
            name,
            sum(s.arrival.num_frames for s in own) / total,
            sum(s.arrival.num_frames for s in competed if (s.arrival.tenant or "-") == name) / half,
            percentile([s.latency_s for s in own], 50),
            percentile([s.latency_s for s in own], 90),
        )
        for name, own in sorted(by_name.items())
    )


def _until_half(served: Sequence[Served], total: int) -> list[Served]:
    frames = 0
    first: list[Served] = []
    for one in sorted(served, key=lambda s: s.ended_s):
        first.append(one)
        frames += one.arrival.num_frames
        if 2 * frames >= total:
            break
    return first


def _mean_tenant(name: str, runs: Sequence[TenantFigures]) -> TenantFigures:
    means = (mean(getattr(run, field.name) for run in runs) for field in fields(TenantFigures)[1:])
    return TenantFigures(name, *means)
