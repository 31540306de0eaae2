"""Shortest job first, "sjf": the shortest of the best class, and the next ones in size.

As in duration-aware serving, a clip's length is known when it arrives and stands for its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy, fill_with_peers
from oasr_backend.scheduler.queue import Groups, Order, WaitingQueue


class ShortestJobFirst(Policy):
    """By class, then estimated size, then arrival; long jobs starve but for the starvation bound."""

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        super().__init__(context, queue)
        self._classes = Groups(lambda: _SizeOrder(queue.live))

    def add(self, request: Request) -> None:
        self._classes[request.priority].add(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(chain.from_iterable(self._classes), limits)


class _SizeOrder:
    """The requests of one class by size; those of one size by arrival, so that filing one is O(1)."""

    def __init__(self, live: dict[int, Request]) -> None:
        self._groups = Groups(lambda: Order(live))

    @property
    def is_empty(self) -> bool:
        return next(iter(self._groups), None) is None

    def add(self, request: Request) -> None:
        key = (request.arrival_time, request.request_id, request.ticket)
        self._groups[request.size].add(key)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._groups)
