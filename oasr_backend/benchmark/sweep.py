"""Systems under the same load, one after the other, again and again: what drifts on the machine reaches them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.benchmark.arrivals import Due, draw
from oasr_backend.benchmark.figures import Figures, figures_of
from oasr_backend.benchmark.results import Cell, Results
from oasr_backend.benchmark.ruler import Ask, drive, one_by_one
from oasr_backend.benchmark.systems import System, Waits
from oasr_backend.errors import ConfigError

BACKLOG = 0.0
"""The load of a run in which everything is sent at once."""

TRACE = "trace"
TRACE_LOAD = 1.0
"""A trace has one load, its own."""

Progress = Callable[[str, int], Callable[[], None]]
"""Is told of a run and how many answers it will have; returns what is called at each."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to run.

    loads: in times the requests a second that the system called `reference` works off.
    num_requests: of a run at a load; a backlog holds `num_backlog`.
    trace: arrivals to be sent as they are, in place of backlogs and loads.
    """

    lengths: str
    loads: Sequence[float]
    reference: str
    num_requests: int
    num_backlog: int
    repeats: int
    kind: str = "poisson"
    trace: Sequence[Due] = ()

    def cases(self) -> list[tuple[str, float]]:
        """Return the kinds of arrivals and the loads of every repeat."""
        if self.trace:
            return [(TRACE, TRACE_LOAD)]
        return [("burst", BACKLOG), *((self.kind, load) for load in self.loads)]

    def size_of(self, cell: Cell) -> int:
        """Return the requests of a run."""
        if self.trace:
            return len(self.trace)
        return self.num_requests if cell.load else self.num_backlog


class Bench:
    """Systems that are started, and the utterances that they are asked for."""

    def __init__(
        self,
        systems: Sequence[System],
        pool: Sequence[Samples],
        results: Results[Figures],
        progress: Progress,
    ) -> None:
        self._systems, self._pool = systems, pool
        self._results, self._progress = results, progress
        self._expected: dict[str, list[str]] = {}
        self._waits: dict[str, Waits | None] = {}

    async def learn_texts(self) -> dict[str, list[float]]:
        """Ask every system for every utterance without load; return the seconds that each took, by system."""
        alone_s = {}
        for system in self._systems:
            on_done = self._progress(f"{system.name}, alone", len(self._pool))
            answers = await one_by_one(len(self._pool), self._ask(system), on_done)
            failed = [answer.error for answer in answers if answer.error]
            if failed:
                raise ConfigError(f"{system.name} failed without load: {failed[0]}")
            self._expected[system.name] = [answer.text for answer in answers]
            alone_s[system.name] = [answer.latency_s for answer in answers]
        return alone_s

    async def run(self, sweep: Sweep) -> None:
        """Run what of a sweep has not been run."""
        if sweep.trace:
            for repeat in range(sweep.repeats):
                for system in self._turns(repeat):
                    await self._run(
                        sweep, Cell(system.name, sweep.lengths, TRACE, TRACE_LOAD, 0.0, repeat)
                    )
            return
        for repeat in range(sweep.repeats):
            for system in self._turns(repeat):
                await self._run(
                    sweep, Cell(system.name, sweep.lengths, "burst", BACKLOG, 0.0, repeat)
                )
        rate = self.saturation(sweep.reference, sweep.lengths)
        for repeat in range(sweep.repeats):
            for load in sweep.loads:
                for system in self._turns(repeat):
                    cell = Cell(system.name, sweep.lengths, sweep.kind, load, load * rate, repeat)
                    await self._run(sweep, cell)

    def saturation(self, system: str, lengths: str) -> float:
        """Return the requests a second at which a system works off a backlog."""
        runs = self._results.of(system, lengths, "burst", BACKLOG)
        return median(run.throughput for run in runs)

    async def _run(self, sweep: Sweep, cell: Cell) -> Figures:
        done = _found(sweep, cell, self._results)
        if done is not None:
            return done
        arrivals = sweep.trace or draw(
            cell.kind, sweep.size_of(cell), cell.rate, len(self._pool), cell.repeat
        )
        system = next(system for system in self._systems if system.name == cell.system)
        title = f"{cell.system}, {cell.load:.2f} x, repeat {cell.repeat + 1}"
        on_done = self._progress(title, len(arrivals))
        if cell.system not in self._waits:
            self._waits[cell.system] = await system.waits()
        answers = await drive(arrivals, self._ask(system), on_done)
        before, after = self._waits[cell.system], await system.waits()
        self._waits[cell.system] = after
        wait_s = _mean_wait_s(before, after)
        figures = figures_of(answers, self._expected[system.name], wait_s)
        self._results.add(cell, figures)
        return figures

    def _ask(self, system: System) -> Ask:
        return lambda number: system.transcribe(self._pool[number])

    def _turns(self, repeat: int) -> Iterator[System]:
        """Yield the systems, in every repeat from another one on."""
        start = repeat % len(self._systems)
        yield from [*self._systems[start:], *self._systems[:start]]


def is_measured(sweep: Sweep, systems: Sequence[str], results: Results[Figures]) -> bool:
    """Tell whether every run of a sweep is there."""
    return all(
        _found(sweep, Cell(system, sweep.lengths, kind, load, 0.0, repeat), results) is not None
        for system in systems
        for kind, load in sweep.cases()
        for repeat in range(sweep.repeats)
    )


def _found(sweep: Sweep, cell: Cell, results: Results[Figures]) -> Figures | None:
    """Return a run that is there; ConfigError where it was of another size."""
    done = results.find(cell)
    if done is not None and done.requests != sweep.size_of(cell):
        raise ConfigError(
            f"{cell.system} was measured with runs of {done.requests:g} requests, not {sweep.size_of(cell)}: leave "
            "--resume out, or name another folder with --output"
        )
    return done


def _mean_wait_s(before: Waits | None, after: Waits | None) -> float:
    if before is None or after is None or after.requests == before.requests:
        return math.nan
    return (after.seconds - before.seconds) / (after.requests - before.requests)


def durations_s(pool: Sequence[Samples]) -> list[float]:
    """Return the length of each utterance."""
    return [len(samples) / SAMPLE_RATE_HZ for samples in pool]
