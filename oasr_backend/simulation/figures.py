"""What is said of a run: latencies, padding, delays in batches, and what each tenant got."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import mean

from oasr_backend.simulation.run import Run, Served, percentile


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One tenant's part.

    arrived_share: its part of all audio. alone_p50_s: its p50 with its own arrivals only.
    """

    tenant: str
    arrived_share: float
    p50_s: float
    p90_s: float
    alone_p50_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run, or the means of several: seconds where the name says so.

    padding: frames computed for each frame of audio. throughput: requests a second.
    deepest_delay: see `deepest_delay`. tenants: by name, where there are several.
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
    num_switches: float
    tenants: tuple[TenantFigures, ...] = ()


NUMBERS = tuple(f.name for f in fields(Figures) if f.name != "tenants")


def figures_of(
    run: Run, cap: int, alone_p50_s: Mapping[str | None, float] | None = None
) -> Figures:
    """Return a run's figures.

    cap: rows of a batch at most. alone_p50_s: each tenant's p50 with its own arrivals only, where tenants compete.
    """
    latencies = sorted(s.latency_s for s in run.served)
    return Figures(
        p25_s=percentile(latencies, 25),
        p50_s=percentile(latencies, 50),
        p90_s=percentile(latencies, 90),
        p99_s=percentile(latencies, 99),
        max_s=latencies[-1],
        wait_p50_s=percentile([s.wait_s for s in run.served], 50),
        padding=run.padding_ratio,
        throughput=run.throughput,
        deepest_delay=deepest_delay(run.rows, cap),
        num_switches=run.num_switches,
        tenants=tenant_figures(run.served, alone_p50_s or {}),
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


def tenant_figures(
    served: Sequence[Served], alone_p50_s: Mapping[str | None, float]
) -> tuple[TenantFigures, ...]:
    """Return the figures of each tenant that `alone_p50_s` names, by name; those that name none are "-", together."""
    total = sum(s.arrival.num_frames for s in served)
    by_name: dict[str | None, list[Served]] = {name: [] for name in alone_p50_s}
    for one in served:
        if one.arrival.tenant in by_name:
            by_name[one.arrival.tenant].append(one)
    figures = (
        TenantFigures(
            name or "-",
            sum(s.arrival.num_frames for s in own) / total,
            percentile([s.latency_s for s in own], 50),
            percentile([s.latency_s for s in own], 90),
            alone_p50_s[name],
        )
        for name, own in by_name.items()
    )
    return tuple(sorted(figures, key=lambda figure: figure.tenant))


def _mean_tenant(name: str, runs: Sequence[TenantFigures]) -> TenantFigures:
    means = (mean(getattr(run, field.name) for run in runs) for field in fields(TenantFigures)[1:])
    return TenantFigures(name, *means)
