"""Highest response ratio next: "hrrn".

The ratio is (waited + s) / s with s the estimated size: a short job goes before a long one that came with it, and
every job comes up in time. Highest Response Ratio Next of duration-aware serving.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf

import numpy as np
import numpy.typing as npt

from oasr_backend.request import FRAMES_PER_SECOND, Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy, fill_with_peers
from oasr_backend.scheduler.queue import Groups, Order, WaitingQueue

Ranked = tuple[float, float, str, Request]
"""A request after its rank: the ratio's descending order as (arrived - now) / size, then arrival, then id."""

Ranks = npt.NDArray[np.float64]

HAS_WAITED = float(np.nextafter(0.0, -1.0))
"""The greatest rank of a request that has waited at all."""


def response_ratio(request: Request, now: float) -> float:
    """Return (waited + s) / s of a request, s its estimated size in seconds."""
    size_s = request.size / FRAMES_PER_SECOND
    return (max(0.0, now - request.arrived) + size_s) / size_s


class HighestResponseRatioNext(Policy):
    """By class, then response ratio, computed anew at every selection."""

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        self._classes = Groups(lambda: _RatioOrder(queue.live))

    def add(self, request: Request) -> None:
        self._classes[request.priority].add(request)

    def remove(self, request: Request) -> None:
        self._classes[request.priority].remove(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(self._highest_first(now, limits.ladder.cap), limits)

    def _highest_first(self, now: float, num_wanted: int) -> Iterator[Request]:
        for priority, order in self._classes.items():
            yield from order.highest_first(now, num_wanted)
            # Who came this instant has the ratio 1, whatever its size.
            yield from self.queue.of_class(priority).since(now)


class _RatioOrder:
    """The requests of one class, grouped by size: in a group the oldest always has the highest ratio.

    A table holds when the oldest of each group arrived, so that one look ranks them all.
    """

    def __init__(self, live: dict[int, Request]) -> None:
        self._live = live
        self._groups: dict[int, _Group] = {}
        self._table = _Table()

    @property
    def is_empty(self) -> bool:
        return not self._groups

    def add(self, request: Request) -> None:
        group = self._groups.get(request.size)
        if group is None:
            row = self._table.add(request)
            group = self._groups[request.size] = _Group(self._live, request, row)
        elif _arrival(request) < _arrival(group.head):
            group.head = request
            self._table.set(group.row, request)
        group.order.add((request.arrival_time, request.request_id, request.ticket))

    def remove(self, request: Request) -> None:
        group = self._groups[request.size]
        if group.head is not request:
            return
        head = group.order.first()
        if head is None:
            self._table.free(group.row)
            del self._groups[request.size]
            if self._table.is_sparse:
                self._table = _Table()
                for group in self._groups.values():
                    group.row = self._table.add(group.head)
        else:
            group.head = head
            self._table.set(group.row, head)

    def highest_first(self, now: float, num_wanted: int) -> Iterator[Request]:
        """Yield those who have waited by ratio; ranks as many groups as it needs, `num_wanted` at first."""
        num_ranked, num_yielded = num_wanted, 0
        while True:
            heads, are_all = self._table.highest(now, num_ranked)
            # The first `num_ranked` of all are of the groups whose heads are the first `num_ranked`.
            known = islice(self._merged(heads, now), None if are_all else num_ranked)
            for request in islice(known, num_yielded, None):
                yield request
                num_yielded += 1
            if are_all:
                return
            num_ranked *= 4

    def _merged(self, heads: Sequence[Request], now: float) -> Iterator[Request]:
        """Yield those who have waited, of the groups of `heads`, by ratio: the groups' own orders merged."""
        heap = [_ranked(head, now) for head in heads]
        heapq.heapify(heap)
        rests: dict[int, Iterator[Request]] = {}
        while heap:
            request = heap[0][-1]
            yield request
            rest = rests.get(request.size)
            if rest is None:
                rest = rests[request.size] = iter(self._groups[request.size].order)
                next(rest)  # the head itself
            following = next(rest, None)
            if following is None or following.arrived >= now:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, _ranked(following, now))


class _Group:
    """The requests of one size by arrival, the oldest of them, and its row in the table."""

    __slots__ = ("head", "order", "row")

    def __init__(self, live: dict[int, Request], head: Request, row: int) -> None:
        self.order = Order(live)
        self.head = head
        self.row = row


class _Table:
    """When a request arrived and its size, by row, as arrays."""

    def __init__(self) -> None:
        self._requests: list[Request | None] = []
        self._free_rows: list[int] = []
        self._arrived = np.empty(64)
        self._sizes = np.empty(64)
        # What ranked just enough at the last look but a few: it saves most looks from ranking the whole table.
        self._cutoff = HAS_WAITED

    @property
    def is_sparse(self) -> bool:
        """Most rows are free: looking at them costs more than filling a new table once."""
        return len(self._free_rows) > 64 + len(self._requests) // 2

    def add(self, request: Request) -> int:
        """Put a request into a row of its own, and return that."""
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._requests)
            self._requests.append(None)
            if row == len(self._arrived):
                self._arrived = np.concatenate([self._arrived, np.empty(row)])
                self._sizes = np.concatenate([self._sizes, np.empty(row)])
        self.set(row, request)
        return row

    def set(self, row: int, request: Request) -> None:
        """Put a request into a row that another held."""
        self._requests[row] = request
        self._arrived[row] = request.arrival_time
        self._sizes[row] = request.size

    def free(self, row: int) -> None:
        """Empty a row."""
        self._requests[row] = None
        self._arrived[row] = inf  # who has not waited
        self._free_rows.append(row)

    def highest(self, now: float, num_wanted: int) -> tuple[list[Request], bool]:
        """Return, in no order, `num_wanted` of the highest ratios, more if some tie, and whether these are all.

        Only who has waited counts.
        """
        num_rows = len(self._requests)
        ranks = (self._arrived[:num_rows] - now) / self._sizes[:num_rows]
        rows = np.flatnonzero(ranks <= self._cutoff)
        if not num_wanted < len(rows) <= 16 * num_wanted:
            self._cutoff = _cutoff(ranks, 4 * num_wanted)
            rows = np.flatnonzero(ranks <= self._cutoff)
        are_all = len(rows) <= num_wanted
        if not are_all:
            near = ranks[rows]
            rows = rows[near <= np.partition(near, num_wanted - 1)[num_wanted - 1]]
        found = (self._requests[row] for row in rows.tolist())
        return [request for request in found if request is not None], are_all


def _cutoff(ranks: Ranks, num_wanted: int) -> float:
    """Return the rank of the last that is wanted, or HAS_WAITED where fewer have waited."""
    if len(ranks) <= num_wanted:
        return HAS_WAITED
    return min(HAS_WAITED, float(np.partition(ranks, num_wanted - 1)[num_wanted - 1]))


def _arrival(request: Request) -> tuple[float, str]:
    return request.arrived, request.request_id


def _ranked(request: Request, now: float) -> Ranked:
    return (request.arrived - now) / request.size, request.arrived, request.request_id, request
