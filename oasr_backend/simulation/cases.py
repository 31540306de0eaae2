"""Many runs: what is to be run, over several seeds and processes, and the best batch size of a policy."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from oasr_backend.config import EngineConfig
from oasr_backend.simulation.figures import Figures, figures_of, mean_of
from oasr_backend.simulation.run import Run, percentile, simulate
from oasr_backend.simulation.service import Affine, Measured, Service
from oasr_backend.simulation.workload import Arrival, Workload

K = TypeVar("K")
T = TypeVar("T")

NO_WAIT_BOUND = EngineConfig(max_wait_time=inf)

FIFO_CAPS = tuple(range(1, 33))
"""The batch sizes among which fcfs is tuned."""


@dataclass(frozen=True, slots=True)
class Case:
    """One policy under one workload on one machine.

    cap: rows of a batch at most, in place of the options'. options: the scheduler's others; without a wait bound by
        default, for a finite one turns every policy that does not ship the oldest to fcfs under overload.
    belief: what the cost table starts from, and stays at; None lets it learn, from the machine's own table where the
        service is one, else from its prior.
    """

    policy: str
    workload: Workload
    service: Service
    cap: int = 16
    options: EngineConfig = NO_WAIT_BOUND
    belief: Affine | None = None

    def config(self) -> EngineConfig:
        """Return all of the scheduler's options."""
        return replace(
            self.options,
            max_batch_size=self.cap,
            schedule_policy=self.policy,
            preferred_batch_size=self._rungs() or None,
        )

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch: the top rung where there is a ladder."""
        return max(self._rungs(), default=self.cap)

    def run(self, arrivals: Sequence[Arrival]) -> Run:
        """Serve these arrivals."""
        known: Affine | Measured | None = self.belief
        if known is None and isinstance(self.service, Measured):
            known = self.service
        costs = known.as_cost_table() if known is not None else None
        return simulate(self.config(), arrivals, self.service, costs, learns=self.belief is None)

    def _rungs(self) -> tuple[int, ...]:
        return tuple(r for r in self.options.preferred_batch_size or () if r <= self.cap)


def run_case(case: Case, seed: int) -> Figures:
    """Run one case with the arrivals of one seed; where tenants compete, also each of them alone."""
    arrivals = case.workload.arrivals(seed)
    names = {arrival.tenant for arrival in arrivals}
    alone_p50_s: dict[str | None, float] = {}
    if len(names) > 1 and not case.workload.is_backlog:
        for name in names:
            alone = case.run([arrival for arrival in arrivals if arrival.tenant == name])
            alone_p50_s[name] = percentile([s.latency_s for s in alone.served], 50)
    return figures_of(case.run(arrivals), case.max_rows, alone_p50_s)


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
        with multiprocessing.Pool(self.num_processes, _ignore_interrupts) as pool:
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


def _ignore_interrupts() -> None:
    """Leave Ctrl+C to the process that waits for the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_job(job: tuple[Case, int]) -> Figures:
    return run_case(*job)
