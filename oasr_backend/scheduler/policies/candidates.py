"""The requests that "window" and "cost" choose among: the oldest, in order of length.

They are kept from one selection to the next, since a batch takes a few of them and a few others follow. It knows
nothing of batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import islice
from math import inf

from oasr_backend.request import Request
from oasr_backend.scheduler.queue import Order, WaitingQueue

NOBODY = (-inf, "")
"""The arrival before all others."""


class Candidates:
    """The overdue requests of any class, oldest first, then the oldest of the best class among the rest.

    requests: in order of length, those of one length by arrival; lengths: theirs, by `length_of`.
    anchor: the index of the oldest, which is the first of its length.
    """

    def __init__(self, queue: WaitingQueue, length_of: Callable[[Request], int]) -> None:
        self._queue = queue
        self._length_of = length_of
        # Where it is set, the candidates are all of its requests that came no later than `_newest`.
        self._source: Order | None = None
        self._newest = NOBODY
        self.requests: list[Request] = []
        self.lengths: list[int] = []
        self.anchor = 0

    def add(self, request: Request) -> None:
        """Learn that a request was filed; one that came before a candidate may be one itself."""
        if self._source is not None and _arrival(request) <= self._newest:
            self._start_over(None)

    def remove(self, request: Request) -> None:
        """Learn that a request has left; it may have been none of them."""
        index = bisect_left(self.lengths, self._length_of(request))
        while index < len(self.requests):
            if self.requests[index] is request:
                del self.requests[index], self.lengths[index]
                return
            index += 1

    def refresh(self, now: float, max_candidates: int) -> None:
        """Bring them up to date; somebody waits."""
        queue = self._queue
        best_class = queue.best_class()
        order = best_class
        if (oldest := queue.oldest()) is not None and queue.is_overdue(oldest, now):
            order = queue.by_arrival()
        if order is not self._source:
            self._start_over(order)
        self._fill(order, max_candidates)
        if order is not best_class and not self._are_overdue(now, max_candidates):
            self._start_over(None)
            for request in candidates(queue, now, max_candidates):
                self._insert(request)
        first = order.first()
        assert first is not None, "somebody waits"
        self.anchor = bisect_left(self.lengths, self._length_of(first))

    def _fill(self, order: Order, max_candidates: int) -> None:
        missing = max_candidates - len(self.requests)
        if missing <= 0:
            return
        following = iter(order) if self._newest is NOBODY else order.after(self._newest)
        for request in islice(following, missing):
            self._insert(request)
            self._newest = _arrival(request)

    def _are_overdue(self, now: float, max_candidates: int) -> bool:
        """Tell whether all candidates are overdue and no others may join them."""
        return len(self.requests) == max_candidates and self._queue.is_due(self._newest[0], now)

    def _insert(self, request: Request) -> None:
        """Put in a request that came after all others."""
        length = self._length_of(request)
        index = bisect_right(self.lengths, length)
        self.lengths.insert(index, length)
        self.requests.insert(index, request)

    def _start_over(self, source: Order | None) -> None:
        self._source, self._newest = source, NOBODY
        self.requests.clear()
        self.lengths.clear()


def candidates(queue: WaitingQueue, now: float, max_candidates: int) -> list[Request]:
    """Return the candidates, oldest first, looked up afresh."""
    found = list(islice(queue.overdue(now), max_candidates))
    for order in queue.by_class():
        room = max_candidates - len(found)
        fresh = (request for request in order if not queue.is_overdue(request, now))
        of_class = list(islice(fresh, room))
        if of_class or room == 0:
            return found + of_class
    return found


def _arrival(request: Request) -> tuple[float, str]:
    return request.arrived, request.request_id
