"""The policies that choose among the length runs around the oldest: "window" by padding, "cost" by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from oasr_backend.request import Request
from oasr_backend.scheduler.cost_table import MIN_TIME_S, CostTable
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy
from oasr_backend.scheduler.policies.candidates import Candidates
from oasr_backend.scheduler.queue import WaitingQueue

Ranked = tuple[float, int, int]
"""A run as (what it gets done a second, negated; its size; its start): the least is the best."""


class Runs:
    """The candidates that may share a batch with the oldest, in order of length.

    Every contiguous run of at most the cap that contains the oldest may ship, if the limits admit it.
    """

    def __init__(self, candidates: Candidates, limits: Limits) -> None:
        cap, anchor = limits.ladder.cap, candidates.anchor
        near = slice(max(0, anchor - cap + 1), anchor + cap)
        window = limits.fixed_window_frames
        self.requests = candidates.requests[near]
        self.lengths = [window] * len(self.requests) if window else candidates.lengths[near]
        self.anchor = anchor - near.start
        self._sums = [0, *accumulate(self.lengths)]
        self._limits = limits

    def starts(self, size: int) -> Sequence[int]:
        """Return where the admitted runs of that size begin, the shorter audio first."""
        lengths, limits = self.lengths, self._limits
        first, last = max(0, self.anchor - size + 1), min(self.anchor, len(lengths) - size)
        if first > last:
            return ()
        least = self._sums[first + size] - self._sums[first]
        # None is worse than one of the first run's rows beside the longest of all.
        if limits.admits(size, lengths[first], lengths[last + size - 1], least):
            return range(first, last + 1)
        return [start for start in range(first, last + 1) if self._is_admitted(start, size)]

    def wasted(self, start: int, size: int) -> int:
        """Return the frames of padding of a run."""
        total = self._sums[start + size] - self._sums[start]
        return self.lengths[start + size - 1] * size - total

    def widest(self, end: int, max_size: int) -> int:
        """Return where the widest admitted run begins whose longest row is at `end`; beyond that where none is."""
        first = max(0, end - max_size + 1)
        if self._is_admitted(first, end - first + 1):
            return first  # and so are all within it
        start = self.anchor + 1
        while start > first and self._is_admitted(start - 1, end - start + 2):
            start -= 1
        return start

    def _is_admitted(self, start: int, size: int) -> bool:
        total = self._sums[start + size] - self._sums[start]
        longest = self.lengths[start + size - 1]
        return self._limits.admits(size, self.lengths[start], longest, total)


class _RunsPolicy(Policy):
    """Ships a run of the candidates, always with the oldest of them."""

    ships_oldest = True

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        # Where the encoder has a fixed window all rows cost the same, and the estimated sizes order them.
        by_size = context.config.fixed_window_frames is not None
        self._candidates = Candidates(queue, _size if by_size else _num_frames)

    def add(self, request: Request) -> None:
        self._candidates.add(request)

    def remove(self, request: Request) -> None:
        self._candidates.remove(request)

    def has_candidates(self, num_wanted: int, now: float) -> bool:
        found = islice(self.queue.best_class(), num_wanted)
        return num_wanted == 1 or sum(1 for _ in found) == num_wanted

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        max_candidates = limits.ladder.cap * self.context.config.length_window_factor
        self._candidates.refresh(now, max_candidates)
        runs = Runs(self._candidates, limits)
        sizes = self._sizes(len(self._candidates.requests), limits)
        start, size = self._choose(runs, sizes) or (runs.anchor, 1)
        return runs.requests[start : start + size]

    def _sizes(self, num_candidates: int, limits: Limits) -> Sequence[int]:
        return limits.ladder.up_to(num_candidates)

    def _choose(self, runs: Runs, sizes: Sequence[int]) -> tuple[int, int] | None:
        """Return the start and the size of the run that ships; None where the limits admit none of those sizes."""
        raise NotImplementedError


class Window(_RunsPolicy):
    """The least-padded run of the largest size that the candidates fill and the guards admit."""

    def _choose(self, runs: Runs, sizes: Sequence[int]) -> tuple[int, int] | None:
        for size in reversed(sizes):
            if starts := runs.starts(size):
                return min(starts, key=lambda start: runs.wasted(start, size)), size
        return None


class Cost(_RunsPolicy):
    """The run that gets the most done a second: the greatest sum(size ** exponent) / batch time."""

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        config = context.config
        self._ladder = Ladder(config.preferred_batch_size or (), config.max_batch_size)
        # Not where a long clip may hold little speech, or a language with few tokens.
        self._longer_is_larger = config.job_size == "frames" or bool(config.fixed_window_frames)

    def _sizes(self, num_candidates: int, limits: Limits) -> Sequence[int]:
        # A forced batch too comes in rungs, unless too few wait for any.
        return self._ladder.up_to(num_candidates) or limits.ladder.up_to(num_candidates)

    def _choose(self, runs: Runs, sizes: Sequence[int]) -> tuple[int, int] | None:
        exponent = self.context.config.cost_exponent
        worth = [0.0, *accumulate(request.size**exponent for request in runs.requests)]
        costs = self.context.costs
        if costs.line is not None and not self._ladder.preferred and self._longer_is_larger:
            ranked = _ranked_on_a_line(runs, worth, sizes[-1], *costs.line)
        else:
            ranked = _ranked(runs, worth, sizes, costs)
        best = _best(ranked, self.context.config.cost_margin)
        return None if best is None else (best[2], best[1])


def _best(ranked: Iterator[Ranked], margin: float) -> Ranked | None:
    """Return the best run; with a margin, the smallest of those that are as good but for so much."""
    if not margin:
        return min(ranked, default=None)
    runs = list(ranked)
    least = min(runs, default=(0.0, 0, 0))[0] / (1 + margin)
    return min((run for run in runs if run[0] <= least), key=_smallest_first, default=None)


def _smallest_first(run: Ranked) -> tuple[int, float, int]:
    return run[1], run[0], run[2]


def _ranked(
    runs: Runs, worth: Sequence[float], sizes: Sequence[int], costs: CostTable
) -> Iterator[Ranked]:
    """Yield the best admitted run of each of the given sizes."""
    for size in sizes:
        if starts := runs.starts(size):
            times_s = costs.batch_times_s(size, [runs.lengths[at + size - 1] for at in starts])
            rates = [
                (worth[start] - worth[start + size]) / time_s
                for start, time_s in zip(starts, times_s, strict=True)
            ]
            best = min(rates)
            yield best, size, starts[rates.index(best)]


def _ranked_on_a_line(
    runs: Runs, worth: Sequence[float], max_size: int, fixed_s: float, slope_s: float
) -> Iterator[Ranked]:
    """Yield the admitted runs of any size that may be the best, where a batch takes fixed + slope · rows · longest.

    Of the runs that end with the same longest row, each one more row is shorter than those before and takes as long:
    once the rate falls it falls for good. And once the guards refuse a run they refuse the wider ones.
    """
    for end in range(runs.anchor, min(len(runs.lengths), runs.anchor + max_size)):
        row_s = slope_s * runs.lengths[end]
        lowest = 0.0
        for start in range(runs.anchor, runs.widest(end, max_size) - 1, -1):
            size = end - start + 1
            rate = (worth[start] - worth[end + 1]) / max(MIN_TIME_S, fixed_s + row_s * size)
            if rate >= lowest:
                break
            lowest = rate
            yield rate, size, start


def _num_frames(request: Request) -> int:
    return request.num_frames


def _size(request: Request) -> int:
    return request.size
