"""Switch between fixed policies on how many requests wait: "adaptive".

A shallow queue leaves little to choose, a deep one much. Between the two depths it stays as it is, so that it does not
switch back and forth. Each switch is logged and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy
from oasr_backend.scheduler.queue import WaitingQueue

log = logging.getLogger(__name__)

CALM, BUSY = "window", "cost"
"""The policy of a shallow queue, in which there is little to choose, and that of a deep one."""

BUSY_DEPTH, CALM_DEPTH = 1.0, 0.25
"""Waiting requests, in caps, from which the queue counts as deep, and below which it counts as shallow again."""


class Adaptive(Policy):
    """Runs one of the fixed policies at a time, and changes it with hysteresis."""

    def __init__(
        self,
        context: Context,
        queue: WaitingQueue,
        make: Callable[[str, Context, WaitingQueue], Policy],
    ) -> None:
        super().__init__(context, queue)
        self._make = make
        self._name = CALM
        self._current = make(CALM, context, queue)
        self.num_switches = 0

    @property
    def ships_oldest(self) -> bool:  # type: ignore[override]
        return self._current.ships_oldest

    def add(self, request: Request) -> None:
        self._current.add(request)

    def remove(self, request: Request) -> None:
        self._current.remove(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        wanted = self._wanted(limits)
        if wanted != self._name:
            self._switch(wanted)
        return self._current.select(limits, now)

    def _wanted(self, limits: Limits) -> str:
        depth = len(self.queue) / limits.ladder.cap
        if depth >= BUSY_DEPTH:
            return BUSY
        return CALM if depth < CALM_DEPTH else self._name

    def _switch(self, name: str) -> None:
        log.info("adaptive goes from %s to %s: %d wait", self._name, name, len(self.queue))
        self._name = name
        self._current = self._make(name, self.context, self.queue)
        for request in self.queue:
            self._current.add(request)
        self.num_switches += 1
