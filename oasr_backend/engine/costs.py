"""What batches cost on this machine: measured at load, learnt from steps, shown as metrics, kept in a file.

It knows nothing of requests: how the times are estimated in between is `scheduler/cost_table.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

from oasr_backend.config import EngineConfig
from oasr_backend.engine.metrics import Metrics
from oasr_backend.errors import ConfigError
from oasr_backend.files import write_whole
from oasr_backend.models.base import Recognizer
from oasr_backend.scheduler import CostTable

log = logging.getLogger(__name__)

Rehearse = Callable[[int, int], None]
"""Runs batches of so many rows of so many frames, as many at a time as the engine runs."""

Shape = tuple[int, int]
"""Rows of a batch, and what its longest row counts for, in frames."""

TYPICAL_FRAMES = 600
"""Read sentences have a median of 5.8 s (LibriSpeech). Where every row is encoded in one window, only the decoder sees
the difference, and the fit of the steps that run repairs it."""

MEASURED_FRAMES = (200, TYPICAL_FRAMES, 1500)
"""2, 6 and 15 s: between and beyond them the table goes on in straight lines."""

SHOW_EVERY_S = 0.5
"""A gauge takes as long to publish as all else that a step has to say."""

MEASURED_TWICE_S = 1.0
MIN_MEASURED_S = 0.3
MAX_ROUNDS = 20
"""A short batch is measured again and its best time taken, since whatever disturbs a measurement lengthens it; in
rounds, since a disturbance may last: where the times of all sizes are off by as much, the policy chooses as well."""


class BatchCosts:
    """The cost table of one engine, and what becomes of it outside. The engine's thread calls it, once that runs."""

    def __init__(
        self,
        config: EngineConfig,
        recognizer: Recognizer,
        metrics: Metrics,
        clock: Callable[[], float],
        rehearse: Rehearse,
    ) -> None:
        """Start from the table in the file, where there is one; raises ConfigError where it holds none."""
        self._config = config
        self._rehearse = rehearse
        self._metrics = metrics
        self._clock = clock
        self._path = Path(config.cost_table_path) if config.cost_table_path else None
        kept = read_cost_table(self._path) if self._path is not None else None
        self.table = kept or CostTable()
        self._rungs = most_telling_first(config)
        self._lengths = _lengths(recognizer)
        self._counted = recognizer.window_frames
        shapes = [(rows, self._counted(length)) for rows in self._rungs for length in self._lengths]
        self._shapes: Sequence[Shape] = shapes
        self._turns: Iterator[Shape] = cycle(shapes)
        self._show_at = clock()

    def warm_up(self) -> None:
        """Run batches of every size and measure them, as far as `measure_costs_s` allows, and write the file.

        Raises ConfigError where the file cannot be written.
        """
        if self._config.measure_costs_s > 0:
            self._measure()
        for shape in self._shapes:
            self._show(shape)
        if self._path is not None:
            try:
                write_cost_table(self._path, self.table)
            except OSError as error:
                raise ConfigError(
                    f"cost_table_path is '{self._path}', which cannot be written ({error.strerror}): "
                    "make its folder and let the server write there, or name another file"
                ) from error

    def observe(self, num_rows: int, longest: int, step_s: float) -> None:
        """Learn from a step that ran; now and then renew one of the gauges, each of which gets its turn."""
        self.table.observe(num_rows, longest, step_s)
        if self._clock() >= self._show_at:
            self._show_at = self._clock() + SHOW_EVERY_S
            self._show(next(self._turns))

    def save(self) -> None:
        """Write what was learnt to the file; only log where that fails, since nobody waits for it any more."""
        if self._path is None:
            return
        try:
            write_cost_table(self._path, self.table)
        except OSError as error:
            log.warning("cost_table_path: %s cannot be written: %s", self._path, error)

    def _show(self, shape: Shape) -> None:
        rows, frames = shape
        seconds = self.table.batch_time_s(rows, frames)
        self._metrics.set("oasr_batch_cost_seconds", seconds, rows=str(rows), frames=str(frames))

    def _measure(self) -> None:
        started_at = self._clock()
        rehearsal = _Rehearsal(self._rehearse, self._clock, self._config.measure_costs_s)
        skipped = self._measure_rungs(rehearsal)
        for num_rows, length in rehearsal.rounds():
            self._measure_shape(rehearsal, num_rows, length)
        log.info(
            "batch times after %.1f s of measuring: %s",
            self._clock() - started_at,
            ", ".join(
                f"{rows} × {n} frames {self.table.batch_time_s(rows, n):.3g} s"
                for rows, n in sorted(self._shapes)
            ),
        )
        if skipped:
            log.warning(
                "batches of %s rows were not measured within %g s (measure_costs_s): they are taken to gain nothing "
                "over smaller ones, so that none may ever run: raise it",
                " and ".join(map(str, sorted(skipped))),
                self._config.measure_costs_s,
            )

    def _measure_rungs(self, rehearsal: _Rehearsal) -> list[int]:
        """Measure every rung as far as the time allows; return those of which nothing is known.

        One row at every length comes first, then each rung at a typical length, which tells whether batches gain; what
        is short is measured twice. Where the time is then too short for a rung's other lengths, they are taken to gain
        as much.
        """
        smallest, *larger = self._rungs
        typical = max([n for n in self._lengths if n <= TYPICAL_FRAMES] or self._lengths[:1])
        if not self._measure_rung(rehearsal, smallest, self._times_s(smallest, self._lengths)):
            return self._rungs
        known = [
            rows
            for rows in larger
            if self._measure_rung(rehearsal, rows, self._times_s(rows, [typical]))
        ]
        for num_rows, length in rehearsal.second_round():
            self._measure_shape(rehearsal, num_rows, length)
        alone_s = self._times_s(smallest, self._lengths)
        for rows in known:
            ratio = self.table.batch_time_s(rows, self._counted(typical)) / alone_s[typical]
            inferred_s = {n: ratio * alone_s[n] for n in self._lengths if n != typical}
            if not self._measure_rung(rehearsal, rows, inferred_s):
                for length, seconds in inferred_s.items():
                    self.table.measure(rows, self._counted(length), seconds)
        return [rows for rows in larger if rows not in known]

    def _measure_rung(
        self, rehearsal: _Rehearsal, num_rows: int, estimates_s: Mapping[int, float]
    ) -> bool:
        """Warm up for batches of that size and measure them at each length that has an estimate; False where the time
        is too short.

        They are measured at all of the lengths or at none, lest a longer batch seem quicker than a shorter one.
        """
        if not rehearsal.warm_up(num_rows, max(estimates_s.values(), default=0.0)):
            return False
        if all(self.table.is_measured(num_rows, self._counted(n)) for n in estimates_s):
            return True  # the file knew it
        if not rehearsal.has_time_for(num_rows, list(estimates_s.values())):
            return False
        for length in estimates_s:
            self._measure_shape(rehearsal, num_rows, length)
        return True

    def _times_s(self, num_rows: int, lengths: Sequence[int]) -> dict[int, float]:
        return {n: self.table.batch_time_s(num_rows, self._counted(n)) for n in lengths}

    def _measure_shape(self, rehearsal: _Rehearsal, num_rows: int, length: int) -> None:
        best_s = rehearsal.best_time_s(num_rows, length)
        self.table.measure(num_rows, self._counted(length), best_s)


class _Rehearsal:
    """Runs batches that stand for real ones, within a time limit that it looks at between batches."""

    def __init__(self, rehearse: Rehearse, clock: Callable[[], float], limit_s: float) -> None:
        self._rehearse = rehearse
        self._clock = clock
        self._ends_at = clock() + limit_s
        self._most_rows = 0
        self._least_s_per_row = 0.0
        self._times_s: dict[Shape, list[float]] = {}

    def warm_up(self, num_rows: int, estimate_s: float) -> bool:
        """Run a batch of nearly nothing, unless one as large has run; False where the time is too short.

        The first batch of a size takes half as long again on a CPU, until its memory is touched, and many times as
        long on a GPU. The very first always runs: before it nobody knows what time is needed.
        """
        if num_rows <= self._most_rows:
            return True
        if self._most_rows and not self.has_time_for(num_rows, [estimate_s]):
            return False
        seconds = self._run(num_rows, 1)
        self._least_s_per_row = self._least_s_per_row or seconds / num_rows
        self._most_rows = num_rows
        return True

    def has_time_for(self, num_rows: int, estimates_s: Sequence[float]) -> bool:
        """Tell whether half of the time fits that batches are estimated to take, at least what the first warm-up took.

        Half, since estimates for more rows than were measured say that rows add up, which they seldom do.
        """
        least_s = self._least_s_per_row * num_rows
        needed_s = sum(max(each, least_s) for each in estimates_s)
        return self._clock() + needed_s / 2 <= self._ends_at

    def best_time_s(self, num_rows: int, num_frames: int) -> float:
        """Run a batch of that shape and return what one has taken at best."""
        times_s = self._times_s.setdefault((num_rows, num_frames), [])
        times_s.append(self._run(num_rows, num_frames))
        return min(times_s)

    def second_round(self) -> Iterator[Shape]:
        """Yield the short shapes that were measured once, while the time lasts: one disturbance is not to rule them."""
        for shape, times_s in list(self._times_s.items()):
            is_unsure = len(times_s) == 1 and times_s[0] < MEASURED_TWICE_S
            if is_unsure and self._clock() + times_s[0] <= self._ends_at:
                yield shape

    def rounds(self) -> Iterator[Shape]:
        """Yield the shapes that are worth measuring again, as often as they are, while the time lasts."""
        for _ in range(MAX_ROUNDS - 2):
            for shape, times_s in self._times_s.items():
                best_s = min(times_s)
                is_unsure = best_s * len(times_s) < MIN_MEASURED_S
                if is_unsure and self._clock() + best_s <= self._ends_at:
                    yield shape

    def _run(self, num_rows: int, num_frames: int) -> float:
        started_at = self._clock()
        self._rehearse(num_rows, num_frames)
        return self._clock() - started_at


def most_telling_first(config: EngineConfig) -> list[int]:
    """Return the batch sizes to measure: the smallest, the largest, then those between, which lie on a line if need be.

    Without a ladder they are the powers of two below the cap, and the cap.
    """
    cap = config.max_batch_size
    rungs = config.preferred_batch_size or tuple(
        sorted({*(1 << n for n in range(cap.bit_length())), cap})
    )
    return [rungs[0], *reversed(rungs[1:])]


def _lengths(recognizer: Recognizer) -> list[int]:
    """Return the lengths to measure, without those that count for more than a longer one: few clips are like them."""
    if recognizer.fixed_window_frames:
        return [TYPICAL_FRAMES]
    lengths = sorted({min(length, recognizer.max_piece_frames) for length in MEASURED_FRAMES})
    counted = recognizer.window_frames
    return [
        n for n in lengths if all(counted(n) <= counted(longer) for longer in lengths if longer > n)
    ]


def read_cost_table(path: Path) -> CostTable | None:
    """Return the cost table in a JSON file, None where there is no such file; ConfigError where it holds no table."""
    try:
        return CostTable.from_dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        reason = f"no cost table: {error!r}"
    raise ConfigError(
        f"cost_table_path is '{path}', which cannot be read ({reason}): "
        "delete the file to have it measured anew, or name another"
    )


def write_cost_table(path: Path, table: CostTable) -> None:
    """Write a cost table as JSON, in one piece or not at all; OSError where it cannot be written."""
    write_whole(path, (json.dumps(table.as_dict(), indent=1) + "\n").encode())
