"""Highest response ratio next: "hrrn".

The ratio is (waited + s) / s with s the estimated size: a short job goes before a long one that came with it, and
every job comes up in time. Highest Response Ratio Next of duration-aware serving.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy, fill_with_peers
from oasr_backend.scheduler.queue import Order, WaitingQueue

Ranked = tuple[float, float, str, Request]
"""A request after its rank: the ratio's descending order as (arrived - now) / size, then arrival, then id."""


def response_ratio(request: Request, now: float) -> float:
    """Return (waited + s) / s of a request, s its estimated size in seconds."""
    size_s = request.size / 100
    return (now - request.arrived + size_s) / size_s


class HighestResponseRatioNext(Policy):
    """By class, then response ratio, computed anew at every selection."""

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        self._classes: SortedDict[int, _RatioOrder] = SortedDict()

    def add(self, request: Request) -> None:
        order = self._classes.get(request.priority)
        if order is None:
            order = self._classes[request.priority] = _RatioOrder(self.queue.live)
        order.add(request)

    def remove(self, request: Request) -> None:
        self._classes[request.priority].remove(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(self._highest_first(now, limits.ladder.cap), limits)

    def _highest_first(self, now: float, num_wanted: int) -> Iterator[Request]:
        for order in self._classes.values():
            yield from order.highest_first(now, num_wanted)


class _RatioOrder:
    """The requests of one class, grouped by size: in a group the oldest always has the highest ratio."""

    def __init__(self, live: dict[int, Request]) -> None:
        self._live = live
        self._groups: dict[int, Order] = {}
        self._heads: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        size = request.size
        group = self._groups.get(size)
        if group is None:
            group = self._groups[size] = Order(self._live)
        group.add((request.arrived, request.request_id), request.ticket)
        head = self._heads.get(size)
        if head is None or (request.arrived, request.request_id) < (head.arrived, head.request_id):
            self._heads[size] = request

    def remove(self, request: Request) -> None:
        if self._heads[request.size] is not request:
            return
        head = self._groups[request.size].first()
        if head is None:
            del self._groups[request.size], self._heads[request.size]
        else:
            self._heads[request.size] = head

    def highest_first(self, now: float, num_wanted: int) -> Iterator[Request]:
        """Yield everyone by ratio; expects to be asked for `num_wanted`, and is fast up to there."""
        heads: list[Ranked] = [
            ((head.arrival_time - now) / size, head.arrival_time, head.request_id, head)  # type: ignore[operator,misc]
            for size, head in self._heads.items()
        ]
        # The first `num_wanted` are of the groups whose heads are the first `num_wanted`.
        top = self._merged(heapq.nsmallest(num_wanted, heads), now)
        num_yielded = 0
        for request in top:
            yield request
            num_yielded += 1
            if num_yielded == num_wanted:
                break
        for index, request in enumerate(self._merged(heads, now)):
            if index >= num_yielded:
                yield request

    def _merged(self, heads: list[Ranked], now: float) -> Iterator[Request]:
        """Yield the requests of the groups of `heads` by ratio, the groups' own orders merged."""
        heap = list(heads)
        heapq.heapify(heap)
        rests: dict[int, Iterator[Request]] = {}
        while heap:
            request = heap[0][-1]
            yield request
            rest = rests.get(request.size)
            if rest is None:
                rest = rests[request.size] = iter(self._groups[request.size])
                next(rest)  # the head itself
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, _ranked(following, now))


def _ranked(request: Request, now: float) -> Ranked:
    return (request.arrived - now) / request.size, request.arrived, request.request_id, request
