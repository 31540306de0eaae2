"""Requests that wait, in the orders that policies read.

An order never holds a request, only its key and the ticket it drew when it was filed; a request that leaves
gives its ticket back, and the stale keys are swept out when they come up or outnumber the living. So
leaving costs O(1) from anywhere in any order, and nothing of a request outlives its wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from sortedcontainers import SortedDict

from oasr_backend.request import NO_TICKET, Request

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

    def since(self, arrived: float) -> Iterator[Request]:
        """Yield the waiting requests that arrived then or later, where keys begin with that, in order."""
        return self._from(bisect_left(self._keys, (arrived,), lo=self._head))

    @property
    def is_empty(self) -> bool:
        """Nobody of it waits."""
        return self.first() is None

    def first(self) -> Request | None:
        """Return the first waiting request, or None: O(1), amortized."""
        self._skip_stale()
        return self._live[self._keys[self._head][-1]] if self._keys else None

    def _from(self, index: int) -> Iterator[Request]:
        live, keys = self._live, self._keys
        num_stale = 0
        try:
            for at in range(index, len(keys)):
                request = live.get(keys[at][-1])
                if request is not None:
                    yield request
                else:
                    num_stale += 1
        finally:
            if num_stale > 64 + len(keys) // 8:
                self._sweep()

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


class Group(Protocol):
    """What may be one of `Groups`."""

    @property
    def is_empty(self) -> bool: ...


G = TypeVar("G", bound=Group)


class Groups(Generic[G]):
    """Groups of waiting requests by a number, the least first; an empty one is dropped when it comes up."""

    def __init__(self, make: Callable[[], G]) -> None:
        self._make = make
        self._groups: SortedDict[int, G] = SortedDict()
        self._sweep_at = 16

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, number: int) -> G:
        """Return the group of a number, made where there is none."""
        group: G | None = self._groups.get(number)
        if group is None:
            if len(self._groups) >= self._sweep_at:
                for empty in [n for n, each in self._groups.items() if each.is_empty]:
                    del self._groups[empty]
                self._sweep_at = 2 * len(self._groups) + 16
            group = self._groups[number] = self._make()
        return group

    def get(self, number: int) -> G | None:
        """Return the group of a number, None where there is none."""
        group: G | None = self._groups.get(number)
        return group

    def items(self) -> Iterator[tuple[int, G]]:
        """Yield the numbers and groups that are not empty; no group may be made meanwhile."""
        empty = []
        try:
            for number in self._groups:
                group = self._groups[number]
                if group.is_empty:
                    empty.append(number)
                else:
                    yield number, group
        finally:
            for number in empty:
                self._groups.pop(number, None)

    def __iter__(self) -> Iterator[G]:
        return (group for _, group in self.items())


class WaitingQueue:
    """Waiting requests by class and arrival: the overdue ones first, then class by class.

    Arrival order is by arrival time, then by request id. A request may be in several queues under one ticket: who takes
    it out of the last one takes its ticket away.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._tickets = count()
        self.live: dict[int, Request] = {}
        self._classes = Groups(lambda: Order(self.live))
        # Everyone by arrival, across classes; built when a second class first appears.
        self._everyone: Order | None = None
        self._nobody = Order(self.live)

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.live.values())

    def add(self, request: Request) -> None:
        """File a request behind those of its class that arrived before it."""
        if request.ticket == NO_TICKET:
            request.ticket = next(self._tickets)
        ticket = request.ticket
        order = self._classes.get(request.priority) or self._open_class(request.priority)
        self.live[ticket] = request
        key = (request.arrival_time, request.request_id, ticket)
        order.add(key)
        if self._everyone is not None:
            self._everyone.add(key)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is: O(1)."""
        del self.live[request.ticket]

    def _open_class(self, priority: int) -> Order:
        if not self.live:
            self._classes = Groups(lambda: Order(self.live))
            self._everyone = None
        if len(self._classes) == 1 and self._everyone is None:
            self._everyone = Order(self.live)
            for request in self.best_class():
                self._everyone.add((request.arrived, request.request_id, request.ticket))
        return self._classes[priority]

    def by_arrival(self) -> Order:
        """Return everyone's order by arrival, of whatever class."""
        if self._everyone is not None:
            return self._everyone
        return self.best_class()

    def best_class(self) -> Order:
        """Return the order of the most urgent class in which somebody waits."""
        return next(iter(self._classes), self._nobody)

    def of_class(self, priority: int) -> Order:
        """Return the order of one class."""
        return self._classes.get(priority) or self._nobody

    def by_class(self) -> Iterator[Order]:
        """Yield the classes' orders, the most urgent class first."""
        return iter(self._classes)

    def oldest(self) -> Request | None:
        """Return the request that arrived first, of whatever class."""
        return self.by_arrival().first()

    def overdue_at(self, request: Request) -> float:
        """Return when a request will have waited for the starvation bound."""
        return request.arrived + self._max_wait_s

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
