"""Policies side by side: each under every workload, and fcfs at its best batch size beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from oasr_backend.config import EngineConfig
from oasr_backend.scheduler import Scheduler
from oasr_backend.simulation.cases import FIFO_CAPS, NO_WAIT_BOUND, Case, Lab
from oasr_backend.simulation.figures import Figures, mean_of
from oasr_backend.simulation.service import Service
from oasr_backend.simulation.workload import (
    Arrival,
    Workload,
    length_drift,
    load_drift,
    steady,
)

POLICIES = ("fcfs", "window", "bucket", "sjf", "hrrn", "cost", "adaptive")
WORKLOADS = ("steady", "burst", "drift-load", "drift-lengths")
WITH_LENGTHS = ("steady", "burst")
WITH_RATES = ("steady", "drift-lengths")

LIGHT, OVERLOAD = 0.3, 2.0
"""The loads of the drift, in times what fcfs works off."""

BEST_FIFO = "fcfs, best cap"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare.

    services: by the name under which they are printed.
    rates: in times what fcfs works off at `cap`, or at its best batch size where `of_best` is set; only a steady load
        and the drift of lengths have one.
    options: the scheduler's, but for policy and cap.
    tenants: names and shares of the arrivals.
    trace: arrivals in place of the workload's.
    """

    workload: str
    lengths: Sequence[str]
    services: dict[str, Service]
    rates: Sequence[float]
    policies: Sequence[str]
    cap: int = 16
    options: EngineConfig = NO_WAIT_BOUND
    tenants: tuple[tuple[str, float], ...] = ()
    trace: tuple[Arrival, ...] = ()
    of_best: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one workload: `seeds` holds the figures of each seed, `saturation` what fcfs works off at
    `saturation_cap`, in requests a second. `lengths` and `rate` are None where the workload has its own."""

    workload: str
    lengths: str | None
    service: str
    saturation: float
    saturation_cap: int
    rate: float | None
    policy: str
    cap: int
    seeds: Sequence[Figures]

    @property
    def mean(self) -> Figures:
        return mean_of(self.seeds)

    @property
    def title(self) -> str:
        """What is the same for all rows of a table."""
        lengths = [f"{self.lengths} lengths"] if self.lengths else []
        return ", ".join([self.workload, *lengths, f"{self.service} service"])


def sweep(plan: Plan, lab: Lab) -> Iterator[list[Row]]:
    """Yield the rows of each service and lengths as they are done."""
    for service_name, service in plan.services.items():
        for lengths in plan.lengths if plan.workload in WITH_LENGTHS else [None]:
            yield _compare(plan, lab, lengths, service_name, service)


def check_policies(plan: Plan) -> None:
    """Raise ConfigError for a policy that does not exist, or a cap that the options contradict."""
    for policy in plan.policies:
        config = replace(plan.options, max_batch_size=plan.cap, schedule_policy=policy)
        Scheduler(config)


def _compare(
    plan: Plan, lab: Lab, lengths: str | None, service_name: str, service: Service
) -> list[Row]:
    workload = _workload(plan, lab, lengths, 1.0, 1.0)
    # What loads are in times of is the same with and without a wait bound or fairness.
    plain = replace(plan.options, max_wait_time=inf, tenant_fairness=False)
    fifo = Case("fcfs", workload, service, plan.cap, plain)
    reference = (
        fifo if plan.workload != "drift-lengths" else replace(fifo, workload=_librispeech(lab))
    )
    best_cap, _ = lab.best_cap(fifo, plan.options.preferred_batch_size or FIFO_CAPS)
    saturation_cap = best_cap if plan.of_best else plan.cap
    saturation = lab.saturations(reference, [saturation_cap])[saturation_cap]
    rates = plan.rates if plan.workload in WITH_RATES else [None]
    cases: dict[tuple[float | None, str], Case] = {}
    for rate in rates:
        workload = _workload(plan, lab, lengths, rate or 1.0, saturation)
        case = Case("fcfs", workload, service, plan.cap, plan.options)
        cases |= {(rate, name): replace(case, policy=name) for name in plan.policies}
        cases[rate, BEST_FIFO] = replace(case, cap=best_cap)
    return [
        Row(
            plan.workload,
            lengths,
            service_name,
            saturation,
            replace(fifo, cap=saturation_cap).max_rows,
            rate,
            policy,
            cases[rate, policy].max_rows,
            figures,
        )
        for (rate, policy), figures in lab.seeds_of(cases).items()
    ]


def _workload(
    plan: Plan, lab: Lab, lengths: str | None, rate: float, saturation: float
) -> Workload:
    """Return the workload whose loads are in times of `saturation`."""
    if plan.trace:
        return Workload(trace=plan.trace)
    made = {
        "steady": lambda: steady(lab.num_requests, rate * saturation, str(lengths)),
        "burst": lambda: steady(lab.num_requests, inf, str(lengths)),
        "drift-load": lambda: load_drift(
            lab.num_requests, LIGHT * saturation, OVERLOAD * saturation, "librispeech"
        ),
        "drift-lengths": lambda: length_drift(lab.num_requests, rate * saturation),
    }[plan.workload]()
    return replace(made, tenants=plan.tenants)


def _librispeech(lab: Lab) -> Workload:
    return steady(lab.num_requests, 1.0, "librispeech")
