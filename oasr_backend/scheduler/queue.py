"""Requests that wait, in the orders that policies read.

An order never holds a request, only its key and the ticket it drew when it was filed; a request that leaves
gives its ticket back, and the stale keys are swept out when they come up or outnumber the living. So
leaving costs O(1) from anywhere in any order, and nothing of a request outlives its wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from sortedcontainers import SortedDict, SortedList

from oasr_backend.request import Request

Key = tuple[Any, ...]


class Order:
    """Waiting requests sorted by a key; ties are broken by the rest of the key."""

    __slots__ = ("_entries", "_live", "_sweep_at")

    def __init__(self, live: dict[int, Request]) -> None:
        self._live = live
        self._entries: SortedList[Key] = SortedList()
        self._sweep_at = 64

    def add(self, key: Key, ticket: int) -> None:
        """File a ticket under a key: O(log n)."""
        self._entries.add((*key, ticket))
        if len(self._entries) > self._sweep_at:
            self._entries = SortedList(e for e in self._entries if e[-1] in self._live)
            self._sweep_at = 2 * len(self._entries) + 64

    def __iter__(self) -> Iterator[Request]:
        """Yield the waiting requests in order; nothing may be added meanwhile."""
        live, entries = self._live, self._entries
        while entries and entries[0][-1] not in live:
            del entries[0]
        for entry in entries:
            request = live.get(entry[-1])
            if request is not None:
                yield request

    def first(self) -> Request | None:
        """Return the first waiting request, or None."""
        return next(iter(self), None)


class WaitingQueue:
    """Waiting requests by class and arrival: the overdue ones first, then class by class.

    Arrival order is by arrival time, then by request id.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._tickets = count()
        self.live: dict[int, Request] = {}
        self._classes: SortedDict[int, Order] = SortedDict()
        # Everyone by arrival, across classes; built when a second class first appears.
        self._everyone: Order | None = None
        self._close_at = 1

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.live.values())

    def add(self, request: Request) -> None:
        """File a request behind those of its class that arrived before it."""
        request.ticket = next(self._tickets)
        self.live[request.ticket] = request
        if request.priority not in self._classes:
            self._open_class(request.priority)
        key = (request.arrived, request.request_id)
        self._classes[request.priority].add(key, request.ticket)
        if self._everyone is not None:
            self._everyone.add(key, request.ticket)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is: O(1)."""
        del self.live[request.ticket]
        request.ticket = -1

    def _open_class(self, priority: int) -> None:
        if len(self._classes) >= self._close_at:
            self._close_empty_classes()
        if len(self._classes) == 1 and self._everyone is None:
            self._everyone = Order(self.live)
            for request in next(iter(self._classes.values())):
                self._everyone.add((request.arrived, request.request_id), request.ticket)
        self._classes[priority] = Order(self.live)

    def _close_empty_classes(self) -> None:
        for priority in [p for p, order in self._classes.items() if order.first() is None]:
            del self._classes[priority]
        if not self._classes:
            self._everyone = None
        self._close_at = 2 * len(self._classes) + 1

    def _by_arrival(self) -> Order | None:
        if self._everyone is not None:
            return self._everyone
        return next(iter(self._classes.values()), None)

    def oldest(self) -> Request | None:
        """Return the request that arrived first, of whatever class."""
        order = self._by_arrival()
        return order.first() if order is not None else None

    def is_overdue(self, request: Request, now: float) -> bool:
        """Tell whether a request has waited for the starvation bound or longer."""
        return request.arrived + self._max_wait_s <= now

    def overdue(self, now: float) -> Iterator[Request]:
        """Yield the overdue requests, oldest first, of whatever class."""
        for request in self._by_arrival() or ():
            if not self.is_overdue(request, now):
                return
            yield request

    def by_class(self) -> Iterator[Order]:
        """Yield the classes' orders, the most urgent class first."""
        yield from self._classes.values()

    def in_order(self, now: float) -> Iterator[Request]:
        """Yield everyone: the overdue oldest first, then the classes, each by arrival."""
        yield from self.overdue(now)
        for order in self.by_class():
            for request in order:
                if not self.is_overdue(request, now):
                    yield request

    def head(self, now: float) -> Request | None:
        """Return who is first in order: the oldest if it is overdue, else the best class's oldest."""
        return next(self.in_order(now), None)
