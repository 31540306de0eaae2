"""Batching by time beside batching by padding and beside arrival order, all at one batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oasr_backend.simulation.cases import Case, Lab
from oasr_backend.simulation.experiments.claims import (
    Claim,
    as_ratios,
    at_most,
    below,
    ratios,
)
from oasr_backend.simulation.figures import Figures
from oasr_backend.simulation.service import SERVICES, Affine
from oasr_backend.simulation.workload import LENGTHS, steady

LOADS = (0.8, 1.0, 1.2, 1.4)
MACHINES = ("cpu", "gpu")
ERRORS = {"fixed term / 4": 0.25, "fixed term x 4": 4.0}
"""Cost tables that start wrong and do not learn."""

Cell = tuple[str, str, float]


def cost_policy(lab: Lab) -> Iterator[Claim | str]:
    """Yield what "cost" must keep against "window", and against fcfs even where its cost table is wrong."""
    cases: dict[tuple[Cell, str], Case] = {}
    for machine in MACHINES:
        for lengths in LENGTHS:
            cases |= _cases(lab, machine, lengths)
    means = lab.means_of(cases)
    cells = list(dict.fromkeys(cell for cell, _ in cases))
    yield f"{lab.num_requests} requests, cap 16, {lab.num_seeds} seeds, wait bound off. p50 / p90 / p99, in parts of:"
    yield f"  {'':<24}{'window / fcfs':<22}{'cost / fcfs':<22}cost / window"
    for cell in cells:
        fcfs, window, cost = (means[cell, name] for name in ("fcfs", "window", "cost"))
        pairs = ((window, fcfs), (cost, fcfs), (cost, window))
        yield f"  {_name(cell):<24}" + "".join(f"{as_ratios(ratios(*p)):<22}" for p in pairs)
    yield from _against_window(means, cells)
    for name in ERRORS:
        yield from _misled(means, cells, name)


def _cases(lab: Lab, machine: str, lengths: str) -> dict[tuple[Cell, str], Case]:
    service = SERVICES[machine]
    fifo = Case("fcfs", steady(lab.num_requests, 1.0, lengths), service)
    saturation = lab.saturations(fifo, [fifo.cap])[fifo.cap]
    cases: dict[tuple[Cell, str], Case] = {}
    for load in LOADS:
        cell = machine, lengths, load
        case = replace(fifo, workload=steady(lab.num_requests, load * saturation, lengths))
        cases |= {(cell, p): replace(case, policy=p) for p in ("fcfs", "window", "cost")}
        for name, factor in ERRORS.items():
            belief = Affine(factor * service.fixed_s, service.slope_s)
            cases[cell, name] = replace(case, policy="cost", belief=belief)
    return cases


def _against_window(means: dict[tuple[Cell, str], Figures], cells: list[Cell]) -> Iterator[Claim]:
    for percentile, limit in (("p50_s", 1.05), ("p90_s", 1.05), ("p99_s", 1.20)):
        values = {_name(c): ratios(means[c, "cost"], means[c, "window"])[percentile] for c in cells}
        yield at_most(f"cost's {percentile[:3]} / window's is", values, limit)


def _misled(
    means: dict[tuple[Cell, str], Figures], cells: list[Cell], name: str
) -> Iterator[Claim]:
    for percentile, least_load in (("p50_s", 0.0), ("p90_s", 1.0), ("p99_s", 1.0)):
        values = {
            _name(c): ratios(means[c, name], means[c, "fcfs"])[percentile]
            for c in cells
            if c[2] >= least_load
        }
        where = f"from {least_load:.1f} x up" if least_load else "everywhere"
        yield below(f"with its {name}, cost's {percentile[:3]} / fcfs' is {where}", values)


def _name(cell: Cell) -> str:
    machine, lengths, load = cell
    return f"{machine}, {lengths}, {load:.1f} x"
