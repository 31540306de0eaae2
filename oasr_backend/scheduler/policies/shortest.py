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
        self._classes: SortedDict[int, Order] = SortedDict()

    def add(self, request: Request) -> None:
        order = self._classes.get(request.priority)
        if order is None:
            order = self._classes[request.priority] = Order(self.queue.live)
        order.add((request.size, request.arrived, request.request_id), request.ticket)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(self._shortest_first(), limits)

    def _shortest_first(self) -> Iterator[Request]:
        for order in self._classes.values():
            yield from order
