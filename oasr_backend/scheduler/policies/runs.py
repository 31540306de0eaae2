"""The policies that choose among the length runs around the oldest: "window" by padding, "cost" by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from oasr_backend.request import Request
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy
from oasr_backend.scheduler.queue import WaitingQueue


def candidates(queue: WaitingQueue, now: float, max_candidates: int) -> list[Request]:
    """Return the overdue of any class, oldest first, then the oldest of the best class among the rest."""
    found = list(islice(queue.overdue(now), max_candidates))
    for order in queue.by_class():
        room = max_candidates - len(found)
        fresh = (request for request in order if not queue.is_overdue(request, now))
        of_class = list(islice(fresh, room))
        if of_class or room == 0:
            return found + of_class
    return found


class Runs:
    """Candidates in order of length: every contiguous run that contains the first candidate may ship.

    Where the encoder has a fixed window all rows cost the same, and the order is that of the estimated sizes.
    """

    def __init__(self, found: Sequence[Request], limits: Limits) -> None:
        window = limits.fixed_window_frames
        anchor = found[0]
        keyed = sorted(
            (r.size if window else r.num_frames, r.arrived, r.request_id, r) for r in found
        )
        key = (anchor.size if window else anchor.num_frames, anchor.arrived, anchor.request_id)
        self.requests = [entry[-1] for entry in keyed]
        self.lengths = [window or entry[0] for entry in keyed]
        self.anchor = bisect_left(keyed, key, key=lambda entry: entry[:3])
        self._sums = [0, *accumulate(self.lengths)]
        self._limits = limits

    def of_size(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, longest, total length) of the admitted runs of that size, the shorter audio first."""
        first = max(0, self.anchor - size + 1)
        last = min(self.anchor, len(self.lengths) - size)
        for start in range(first, last + 1):
            longest = self.lengths[start + size - 1]
            total = self._sums[start + size] - self._sums[start]
            if self._limits.admits(size, self.lengths[start], longest, total):
                yield start, longest, total


class Window(Policy):
    """The least-padded run of the largest size that the candidates fill and the guards admit."""

    ships_oldest = True

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        max_candidates = limits.ladder.cap * self.context.config.length_window_factor
        runs = Runs(candidates(self.queue, now, max_candidates), limits)
        for size in reversed(limits.ladder.up_to(len(runs.requests))):
            wastes = (
                (longest * size - total, start) for start, longest, total in runs.of_size(size)
            )
            _, start = min(wastes, default=(0, None))
            if start is not None:
                return runs.requests[start : start + size]
        return [runs.requests[runs.anchor]]


class Cost(Policy):
    """The run that gets the most done a second: the greatest sum(size ** exponent) / batch time."""

    ships_oldest = True

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        self._exponent = context.config.cost_exponent
        self._ladder = Ladder(
            context.config.preferred_batch_size or (), context.config.max_batch_size
        )

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        max_candidates = limits.ladder.cap * self.context.config.length_window_factor
        runs = Runs(candidates(self.queue, now, max_candidates), limits)
        exponent = self._exponent
        worth = [0.0, *accumulate(request.size**exponent for request in runs.requests)]
        batch_time_s = self.context.costs.batch_time_s
        best_rate, best = -1.0, (runs.anchor, 1)
        # A forced batch too comes in rungs, unless too few wait for any.
        num_found = len(runs.requests)
        for size in self._ladder.up_to(num_found) or limits.ladder.up_to(num_found):
            for start, longest, _ in runs.of_size(size):
                rate = (worth[start + size] - worth[start]) / batch_time_s(size, longest)
                if rate > best_rate:
                    best_rate, best = rate, (start, size)
        start, size = best
        return runs.requests[start : start + size]
