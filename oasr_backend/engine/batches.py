"""Who of the streams that are ready runs together: preferred sizes, by what they were measured to take.

It knows nothing of threads or of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from oasr_backend.engine.stream import LiveStream
from oasr_backend.scheduler.ladder import Ladder

BatchTime = Callable[[int], float]
"""Seconds of a batch of so many rows."""

NEAR_BEST = 1.05
"""A row that costs at most this many times the cheapest one's share is as good: who runs in a smaller batch is answered
sooner."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Streams that run together, and the rows of their forward, of which some may only fill it."""

    streams: Sequence[LiveStream]
    num_rows: int


@dataclass(frozen=True, slots=True)
class Running:
    """A batch on its way.

    num_run: the chunks that each stream had run before.
    done: its outputs, and the seconds that it took.
    """

    batch: Batch
    num_run: Sequence[int]
    inputs: Any
    done: Future[tuple[Any, float]]


def best_rows(num_ready: int, num_workers: int, ladder: Ladder, batch_time_s: BatchTime) -> int:
    """Return the rows of a batch at most: as many as make a row cheap, but few enough for every worker to have some."""
    share = -(-num_ready // num_workers)
    even = next((rung for rung in ladder.rungs if rung >= share), ladder.rungs[-1])
    row_times_s = {rung: batch_time_s(rung) / rung for rung in ladder.rungs if rung <= even}
    limit_s = NEAR_BEST * min(row_times_s.values())
    return next(rung for rung, row_s in row_times_s.items() if row_s <= limit_s)


def cut(
    ready: Sequence[LiveStream], ladder: Ladder, batch_time_s: BatchTime, most_rows: int
) -> Iterator[Batch]:
    """Yield batches of preferred sizes up to `most_rows`, which is one; the last batch may be padded up to one.

    What is left below `most_rows` runs as one padded batch, or as the largest rung that it fills and the rest,
    whichever takes less time.
    """
    rest = ready
    while rest:
        below = ladder.largest_up_to(min(len(rest), most_rows))
        above = next((rung for rung in ladder.rungs if most_rows >= rung >= len(rest)), 0)
        if above and (
            not below or batch_time_s(above) <= _time_of(len(rest), ladder, batch_time_s)
        ):
            yield Batch(rest, above)
            return
        yield Batch(rest[:below], below)
        rest = rest[below:]


def _time_of(num_streams: int, ladder: Ladder, batch_time_s: BatchTime) -> float:
    """Return how long so many streams take by the largest rungs that they fill, again and again."""
    seconds = 0.0
    while num_streams > 0:
        rung = ladder.largest_up_to(num_streams) or ladder.smallest
        seconds += batch_time_s(rung)
        num_streams -= rung
    return seconds
