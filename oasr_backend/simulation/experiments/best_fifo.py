"""Every policy against fcfs at the batch size that suits it best: the honest peer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oasr_backend.simulation.cases import Case, Lab
from oasr_backend.simulation.experiments.claims import (
    PERCENTILES,
    Claim,
    as_ratios,
    at_most,
    ratios,
    seconds,
)
from oasr_backend.simulation.figures import Figures
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.workload import LENGTHS, steady

LOADS = (0.8, 0.95, 1.05)
CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The batch sizes among which "cost" is tuned, and at which fcfs is tried at every load."""

WINDOW_CAP = 16
Cell = tuple[str, str, float]
Ratios = dict[tuple[Cell, str], dict[str, float]]
"""By cell and policy: percentiles in parts of what fcfs has at its best batch size."""

LEAST = "cost / fcfs' least"
"""Cost in parts of the least that fcfs has at any batch size, each percentile by itself."""


def best_fifo(lab: Lab) -> Iterator[Claim | str]:
    """Yield what "cost" gains on the best fcfs, and what sjf and hrrn cost the tail."""
    yield (
        f"{lab.num_requests} requests, {lab.num_seeds} seeds, wait bound off. fcfs at the batch size of 1 to 32 that "
        "works off a backlog fastest (loads are in times of that), sjf and hrrn at the same one, cost at its own, "
        f"window at {WINDOW_CAP}. p50 / p90 / p99, in parts of fcfs':"
    )
    measured: Ratios = {}
    for machine in SERVICES:
        for lengths in LENGTHS:
            yield from _compare(lab, machine, lengths, measured)
    yield from _claims(measured)


def _compare(lab: Lab, machine: str, lengths: str, measured: Ratios) -> Iterator[str]:
    fifo = Case("fcfs", steady(lab.num_requests, 1.0, lengths), SERVICES[machine])
    fifo_cap, capacity = lab.best_cap(fifo)
    fifo = replace(fifo, cap=fifo_cap)
    cost_cap, cost_capacity = lab.best_cap(replace(fifo, policy="cost"), CAPS)
    yield (
        f"  {machine}, {lengths}: fcfs works off {capacity:.1f}/s at cap {fifo_cap}, "
        f"cost {cost_capacity:.1f}/s at cap {cost_cap}"
    )
    policies = {
        "fcfs": fifo,
        "cost": replace(fifo, policy="cost", cap=cost_cap),
        "window": replace(fifo, policy="window", cap=WINDOW_CAP),
        "sjf": replace(fifo, policy="sjf"),
        "hrrn": replace(fifo, policy="hrrn"),
    }
    for load in LOADS:
        workload = steady(lab.num_requests, load * capacity, lengths)
        means = lab.means_of({p: replace(c, workload=workload) for p, c in policies.items()})
        fifos = lab.means_of({c: replace(fifo, workload=workload, cap=c) for c in CAPS})
        cell = machine, lengths, load
        for policy in list(policies)[1:]:
            measured[cell, policy] = ratios(means[policy], means["fcfs"])
        measured[cell, LEAST] = _parts_of_least(means["cost"], [means["fcfs"], *fifos.values()])
        values = (f"{p} {as_ratios(r)}" for (c, p), r in measured.items() if c == cell)
        yield f"    {load:.2f} x: fcfs {seconds(means['fcfs'])} s; " + "; ".join(values)


def _parts_of_least(ours: Figures, theirs: Sequence[Figures]) -> dict[str, float]:
    return {
        name: getattr(ours, name) / min(getattr(one, name) for one in theirs)
        for name in PERCENTILES
    }


def _claims(measured: Ratios) -> Iterator[Claim]:
    def cost_at(machines: tuple[str, ...], loads: tuple[float, ...], name: str) -> dict[str, float]:
        return {
            f"{machine}, {lengths}, {load:g} x": values[name]
            for ((machine, lengths, load), policy), values in measured.items()
            if policy == LEAST and machine in machines and load in loads
        }

    batching = ("cpu", "gpu")
    for name, limit in (("p50_s", 0.2), ("p90_s", 0.3), ("p99_s", 0.5)):
        values = cost_at(batching, (1.05,), name)
        wide = {k: v for k, v in values.items() if "ljspeech" not in k}
        text = f"cpu and gpu, LibriSpeech-like and uniform, at 1.05 x, cost's {name[:3]} / fcfs' least is"
        yield at_most(text, wide, limit)
    for name in ("p50_s", "p90_s"):
        text = f"cpu and gpu, at 0.8 x, cost's {name[:3]} / fcfs' least is"
        yield at_most(text, cost_at(batching, (0.8,), name), 1.0)
    for name in ("p50_s", "p90_s"):
        text = f"linear, at 0.8 and 0.95 x, cost's {name[:3]} / fcfs' least is"
        yield at_most(text, cost_at(("linear",), (0.8, 0.95), name), 1.05)
