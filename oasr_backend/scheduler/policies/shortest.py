"""Shortest job first, "sjf": the shortest of the best class, and the next ones in size.

As in duration-aware serving, a clip's length is known when it arrives and stands for its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy, fill_with_peers
from oasr_backend.scheduler.queue import Order, WaitingQueue


class ShortestJobFirst(Policy):
    """By class, then estimated size, then arrival; long jobs starve but for the starvation bound."""

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        self._classes: SortedDict[int, _SizeOrder] = SortedDict()

    def add(self, request: Request) -> None:
        order = self._classes.get(request.priority)
        if order is None:
            order = self._classes[request.priority] = _SizeOrder(self.queue.live)
        order.add(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(self._shortest_first(), limits)

    def _shortest_first(self) -> Iterator[Request]:
        for order in self._classes.values():
            yield from order


class _SizeOrder:
    """The requests of one class by size; those of one size by arrival, so that filing one is O(1)."""

    def __init__(self, live: dict[int, Request]) -> None:
        self._live = live
        self._groups: SortedDict[int, Order] = SortedDict()
        self._sweep_at = 64

    def add(self, request: Request) -> None:
        group = self._groups.get(request.size)
        if group is None:
            if len(self._groups) >= self._sweep_at:
                self._sweep()
            group = self._groups[request.size] = Order(self._live)
        group.add((request.arrival_time, request.request_id, request.ticket))

    def __iter__(self) -> Iterator[Request]:
        groups = self._groups
        while groups and groups.peekitem(0)[1].first() is None:
            groups.popitem(0)
        for size in groups:
            yield from groups[size]

    def _sweep(self) -> None:
        """Drop the sizes that nobody has any more: amortized O(1) a size that was added."""
        for size in [size for size, group in self._groups.items() if group.first() is None]:
            del self._groups[size]
        self._sweep_at = 2 * len(self._groups) + 64
