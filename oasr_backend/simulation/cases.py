"""Many runs: what is to be run, over several seeds and processes, and the best batch size of a policy."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from oasr_backend.config import EngineConfig
from oasr_backend.simulation.figures import Figures, figures_of, mean_of
from oasr_backend.simulation.run import simulate
from oasr_backend.simulation.service import Affine, Service
from oasr_backend.simulation.workload import Workload

K = TypeVar("K")
T = TypeVar("T")

FIFO_CAPS = tuple(range(1, 33))
"""The batch sizes among which fcfs is tuned."""


@dataclass(frozen=True, slots=True)
class Case:
    """One policy under one workload on one machine.

    max_wait_time: the starvation bound in seconds; inf by default, for a finite one turns every policy that does not
        ship the oldest to fcfs under overload.
    belief: what the cost table starts from, and stays at; None starts it from its prior and lets it learn.
    """

    policy: str
    workload: Workload
    service: Service
    cap: int = 16
    max_wait_time: float = inf
    tenant_fairness: bool = False
    belief: Affine | None = None

    def config(self) -> EngineConfig:
        """Return the scheduler's options."""
        return EngineConfig(
            max_batch_size=self.cap,
            schedule_policy=self.policy,
            max_wait_time=self.max_wait_time,
            tenant_fairness=self.tenant_fairness,
        )


def run_case(case: Case, seed: int) -> Figures:
    """Run one case with the arrivals of one seed."""
    costs = case.belief.as_cost_table() if case.belief is not None else None
    arrivals = case.workload.arrivals(seed)
    run = simulate(case.config(), arrivals, case.service, costs, learns=case.belief is None)
    return figures_of(run, case.cap)


@dataclass(frozen=True, slots=True)
class Lab:
    """Runs cases over `num_seeds` seeds in `num_processes` processes; `shows_progress` counts runs on stderr."""

    num_requests: int = 4000
    num_seeds: int = 5
    num_processes: int = 1
    shows_progress: bool = False

    def seeds_of(self, cases: Mapping[K, Case]) -> dict[K, list[Figures]]:
        """Return every case's figures, one a seed."""
        jobs = [(case, seed) for case in cases.values() for seed in range(self.num_seeds)]
        figures = list(self._counted(self._map(jobs), len(jobs)))
        parts = (figures[i : i + self.num_seeds] for i in range(0, len(jobs), self.num_seeds))
        return dict(zip(cases, parts, strict=True))

    def means_of(self, cases: Mapping[K, Case]) -> dict[K, Figures]:
        """Return every case's figures, averaged over the seeds."""
        return averaged(self.seeds_of(cases))

    def saturations(self, case: Case, caps: Sequence[int]) -> dict[int, float]:
        """Return the requests a second at which a case works off its workload as a backlog, by batch size."""
        backlog = replace(case, workload=case.workload.as_backlog())
        one_seed = replace(self, num_seeds=1)
        means = one_seed.means_of({cap: replace(backlog, cap=cap) for cap in caps})
        return {cap: figures.throughput for cap, figures in means.items()}

    def best_cap(self, case: Case, caps: Sequence[int] = FIFO_CAPS) -> tuple[int, float]:
        """Return the batch size that works off the backlog fastest, and at how many requests a second."""
        saturations = self.saturations(case, caps)
        cap = max(saturations, key=lambda cap: (saturations[cap], -cap))
        return cap, saturations[cap]

    def _map(self, jobs: Sequence[tuple[Case, int]]) -> Iterator[Figures]:
        if self.num_processes == 1:
            yield from (run_case(*job) for job in jobs)
            return
        with multiprocessing.Pool(self.num_processes) as pool:
            yield from pool.imap(_run_job, jobs)

    def _counted(self, results: Iterable[T], total: int) -> Iterator[T]:
        for done, result in enumerate(results, 1):
            if self.shows_progress:
                end = "\r" if done == total else ""
                text = " " * 40 if done == total else f"{done} of {total} runs"
                print(f"\r{text}", end=end, file=sys.stderr, flush=True)
            yield result


def averaged(figures: Mapping[K, Sequence[Figures]]) -> dict[K, Figures]:
    """Return every case's mean over its seeds."""
    return {key: mean_of(seeds) for key, seeds in figures.items()}


def _run_job(job: tuple[Case, int]) -> Figures:
    return run_case(*job)
