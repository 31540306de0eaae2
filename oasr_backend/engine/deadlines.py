"""When requests expire. It knows only their ids, so that nothing of an answered request is kept."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sized
from typing import Protocol


class Ids(Container[str], Sized, Protocol):
    """The ids of the requests that are not yet answered."""


class Deadlines:
    """Deadlines by time; those of answered requests are dropped when they come up or outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def add(self, deadline_at: float, request_id: str, unanswered: Ids) -> None:
        """Note when an unanswered request expires."""
        heapq.heappush(self._heap, (deadline_at, request_id))
        if len(self._heap) > 2 * len(unanswered) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in unanswered]
            heapq.heapify(self._heap)

    def next(self, unanswered: Ids) -> float | None:
        """Return the earliest deadline of an unanswered request, or None."""
        while self._heap and self._heap[0][1] not in unanswered:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float, unanswered: Ids) -> Iterator[str]:
        """Yield, once, the unanswered requests whose deadline has come."""
        while (deadline_at := self.next(unanswered)) is not None and deadline_at <= now:
            yield heapq.heappop(self._heap)[1]
