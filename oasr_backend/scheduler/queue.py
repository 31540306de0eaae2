"""Requests that wait, in the orders that policies read.

An order never holds a request, only its key and the ticket it drew when it was filed; a request that leaves
gives its ticket back, and the stale keys are swept out when they come up or outnumber the living. So
leaving costs O(1) from anywhere in any order, and nothing of a request outlives its wait.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from itertools import count
from math import inf
from typing import Any

from sortedcontainers import SortedDict

from oasr_backend.request import Request

Key = tuple[Any, ...]


class Order:
    """Waiting requests sorted by a key, which is a tuple that ends with the request's ticket.

    Made for keys that come nearly in order, as arrivals do: those are appended, and a late one moves the few that
    follow it.
    """

    __slots__ = ("_head", "_keys", "_live", "_sweep_at")

    def __init__(self, live: dict[int, Request]) -> None:
        self._live = live
        self._keys: list[Key] = []
        self._head = 0  # before it all are stale
        self._sweep_at = 64

    def add(self, key: Key) -> None:
        """File a request: O(1) at the end; elsewhere the words behind it are moved."""
        keys = self._keys
        if not keys or key > keys[-1]:
            keys.append(key)
        else:
            insort(keys, key, lo=self._head)
        if len(keys) > self._sweep_at:
            self._sweep()

    def __iter__(self) -> Iterator[Request]:
        """Yield the waiting requests in order; nothing may be added meanwhile."""
        self._skip_stale()
        return self._from(self._head)

    def after(self, key: Key) -> Iterator[Request]:
        """Yield the waiting requests behind a key (its ticket may be left out); nothing may be added meanwhile."""
        return self._from(bisect_right(self._keys, (*key, inf), lo=self._head))

    def first(self) -> Request | None:
        """Return the first waiting request, or None: O(1), amortized."""
        self._skip_stale()
        return self._live[self._keys[self._head][-1]] if self._keys else None

    def _from(self, index: int) -> Iterator[Request]:
        live, keys = self._live, self._keys
        for at in range(index, len(keys)):
            request = live.get(keys[at][-1])
            if request is not None:
                yield request

    def _skip_stale(self) -> None:
        live, keys, head = self._live, self._keys, self._head
        end = len(keys)
        while head < end and keys[head][-1] not in live:
            head += 1
        if head == end or head > 64 + end // 2:
            del keys[:head]
            head = 0
        self._head = head

    def _sweep(self) -> None:
        """Drop the stale keys between the living: amortized O(1) a key that was added."""
        live, head = self._live, self._head
        self._keys = [key for key in self._keys[head:] if key[-1] in live]
        self._head = 0
        self._sweep_at = 2 * len(self._keys) + 64


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
        self._nobody = Order(self.live)

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.live.values())

    def add(self, request: Request) -> None:
        """File a request behind those of its class that arrived before it."""
        ticket = request.ticket = next(self._tickets)
        self.live[ticket] = request
        order = self._classes.get(request.priority) or self._open_class(request.priority)
        key = (request.arrival_time, request.request_id, ticket)
        order.add(key)
        if self._everyone is not None:
            self._everyone.add(key)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is: O(1)."""
        del self.live[request.ticket]
        request.ticket = -1

    def _open_class(self, priority: int) -> Order:
        if len(self._classes) >= self._close_at:
            self._close_empty_classes()
        if len(self._classes) == 1 and self._everyone is None:
            self._everyone = Order(self.live)
            for request in next(iter(self._classes.values())):
                self._everyone.add((request.arrived, request.request_id, request.ticket))
        order = self._classes[priority] = Order(self.live)
        return order

    def _close_empty_classes(self) -> None:
        for priority in [p for p, order in self._classes.items() if order.first() is None]:
            del self._classes[priority]
        if not self._classes:
            self._everyone = None
        self._close_at = 2 * len(self._classes) + 1

    def by_arrival(self) -> Order:
        """Return everyone's order by arrival, of whatever class."""
        if self._everyone is not None:
            return self._everyone
        return self.best_class()

    def best_class(self) -> Order:
        """Return the order of the most urgent class in which somebody waits."""
        return next((o for o in self.by_class() if o.first() is not None), self._nobody)

    def of_class(self, priority: int) -> Order:
        """Return the order of one class."""
        order: Order = self._classes.get(priority, self._nobody)
        return order

    def by_class(self) -> Iterator[Order]:
        """Yield the classes' orders, the most urgent class first."""
        for priority in self._classes:
            yield self._classes[priority]

    def oldest(self) -> Request | None:
        """Return the request that arrived first, of whatever class."""
        return self.by_arrival().first()

    def is_due(self, arrived: float, now: float) -> bool:
        """Tell whether who arrived then has waited for the starvation bound or longer."""
        return arrived + self._max_wait_s <= now

    def is_overdue(self, request: Request, now: float) -> bool:
        """Tell whether a request has waited for the starvation bound or longer."""
        return self.is_due(request.arrived, now)

    def overdue(self, now: float) -> Iterator[Request]:
        """Yield the overdue requests, oldest first, of whatever class."""
        for request in self.by_arrival():
            if not self.is_overdue(request, now):
                return
            yield request

    def in_order(self, now: float) -> Iterator[Request]:
        """Yield everyone: the overdue oldest first, then the classes, each by arrival."""
        yield from self.overdue(now)
        for order in self.by_class():
            for request in order:
                if not self.is_overdue(request, now):
                    yield request
