"""Policies side by side: each under every workload, and fcfs at its best batch size beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from oasr_backend.simulation.cases import Case, Lab
from oasr_backend.simulation.figures import Figures, mean_of
from oasr_backend.simulation.service import Service
from oasr_backend.simulation.workload import (
    Arrival,
    Mode,
    Workload,
    length_drift,
    load_drift,
    steady,
)

POLICIES = ("fcfs", "window", "bucket", "sjf", "hrrn", "cost", "adaptive")
BURST_REQUESTS = 500
LIGHT, OVERLOAD = 0.3, 2.0
"""The loads of the drift, in times what fcfs works off."""

BEST_FIFO = "fcfs, best cap"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare.

    services: by the name under which they are printed.
    rates: in times what fcfs works off at `cap`; only a steady load and the drift of lengths have one.
    tenants: names and shares of the arrivals.
    trace: arrivals for the workload "trace".
    """

    workload: str
    lengths: Sequence[str]
    services: dict[str, Service]
    rates: Sequence[float]
    policies: Sequence[str]
    cap: int = 16
    max_wait_time: float = inf
    tenants: tuple[tuple[str, float], ...] = ()
    tenant_fairness: bool = False
    trace: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one workload: `seeds` holds the figures of each seed, `saturation` what fcfs works off at
    the plan's cap, in requests a second. `rate` is None where the workload has none."""

    lengths: str
    service: str
    saturation: float
    rate: float | None
    policy: str
    cap: int
    seeds: Sequence[Figures]

    @property
    def mean(self) -> Figures:
        return mean_of(self.seeds)


def sweep(plan: Plan, lab: Lab) -> Iterator[list[Row]]:
    """Yield the rows of each service and lengths as they are done."""
    for service_name, service in plan.services.items():
        for lengths in plan.lengths if plan.workload in ("steady", "burst") else ["-"]:
            yield _compare(plan, lab, lengths, service_name, service)


def _compare(plan: Plan, lab: Lab, lengths: str, service_name: str, service: Service) -> list[Row]:
    fifo = Case("fcfs", _workload(plan, lab, lengths, 1.0, 1.0), service, plan.cap)
    reference = (
        fifo if plan.workload != "drift-lengths" else replace(fifo, workload=_librispeech(lab))
    )
    saturation = lab.saturations(reference, [plan.cap])[plan.cap]
    best_cap, _ = lab.best_cap(fifo)
    rates = plan.rates if plan.workload in ("steady", "drift-lengths") else [None]
    cases: dict[tuple[float | None, str], Case] = {}
    for rate in rates:
        workload = _workload(plan, lab, lengths, rate or 1.0, saturation)
        case = Case("fcfs", workload, service, plan.cap, plan.max_wait_time, plan.tenant_fairness)
        cases |= {(rate, name): replace(case, policy=name) for name in plan.policies}
        cases[rate, BEST_FIFO] = replace(case, cap=best_cap)
    return [
        Row(lengths, service_name, saturation, rate, policy, cases[rate, policy].cap, figures)
        for (rate, policy), figures in lab.seeds_of(cases).items()
    ]


def _workload(plan: Plan, lab: Lab, lengths: str, rate: float, saturation: float) -> Workload:
    """Return the workload whose loads are in times of `saturation`."""
    made = {
        "steady": lambda: steady(lab.num_requests, rate * saturation, lengths),
        "burst": lambda: Workload((Mode(BURST_REQUESTS, inf, lengths),)),
        "drift-load": lambda: load_drift(
            lab.num_requests, LIGHT * saturation, OVERLOAD * saturation, "librispeech"
        ),
        "drift-lengths": lambda: length_drift(lab.num_requests, rate * saturation),
        "trace": lambda: Workload(trace=plan.trace),
    }[plan.workload]()
    return replace(made, tenants=plan.tenants)


def _librispeech(lab: Lab) -> Workload:
    return steady(lab.num_requests, 1.0, "librispeech")


WORKLOADS = ("steady", "burst", "drift-load", "drift-lengths", "trace")
