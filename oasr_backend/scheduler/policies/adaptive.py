"""Switch between fixed policies on how the queue stands: "adaptive".

It watches how many wait, how long the oldest has waited beside what is usual, and how many a policy leaves behind.
It knows nothing of what comes; every look at the queue is O(1), and only a switch files the waiting anew.

- "fcfs" while one at a time waits: there is nothing to choose.
- "cost" as soon as two wait.
- "sjf" while many wait, a full batch takes hardly longer than one request alone, and nobody starves by it.

A queue that made "sjf" starve somebody must drain before "sjf" has another try, and it must drain too before "sjf"
ends of itself: so between two switches of a deep queue about as many requests leave as a switch files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Context, Policy
from oasr_backend.scheduler.queue import WaitingQueue

log = logging.getLogger(__name__)

ALONE, STEADY, DEEP = "fcfs", "cost", "sjf"

ALONE_SELECTIONS = 16
"""Selections in a row that found one request waiting, after which nothing is left to choose."""

DEEP_CAPS, DRAINED_CAPS = 2.5, 1.0
"""Waiting requests, in caps and smoothed, from which a queue is deep, and below which it has drained."""

CHEAP_BATCH = 0.3
"""A full batch is cheap up to this part of the time that its rows would take one by one."""

PATIENCE = 1000.0
"""The oldest starves when it has waited for so many usual waits, or for half of max_wait_time.

A usual wait counts for a batch's time at least, so that a burst after an idle hour does not look like starvation.
"""

LEFT_BEHIND = 0.25
"""Somebody starves too when the queue grows by more than this part of what leaves it."""

DEPTH_WEIGHT, BATCH_WEIGHT = 0.5, 0.05
"""What the newest selection weighs in the smoothed depth, and its batch in what is usual."""


class Adaptive(Policy):
    """Runs one of the fixed policies at a time, and changes it with hysteresis.

    It always ships the oldest once that is overdue: "sjf", which might not, ends before.
    """

    ships_oldest = True

    def __init__(
        self,
        context: Context,
        queue: WaitingQueue,
        make: Callable[[str, Context, WaitingQueue], Policy],
    ) -> None:
        super().__init__(context, queue)
        self._make = make
        self._name = ALONE
        self._current = make(ALONE, context, queue)
        self._signs = _Signs()
        self._must_drain = False
        self.num_switches = 0

    def add(self, request: Request) -> None:
        self._current.add(request)

    def remove(self, request: Request) -> None:
        self._current.remove(request)

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        self._signs.see_depth(len(self.queue))
        wanted = self._wanted(limits, now)
        if wanted != self._name:
            self._switch(wanted)
        batch = self._current.select(limits, now)
        self._signs.see_batch(batch, limits, now)
        return batch

    def _wanted(self, limits: Limits, now: float) -> str:
        if self._signs.num_alone >= ALONE_SELECTIONS:
            return ALONE
        depth = self._signs.depth / limits.ladder.cap
        if depth < DRAINED_CAPS:
            self._must_drain = False
            return STEADY if self._name == DEEP or len(self.queue) > 1 else self._name
        if self._name != DEEP and (self._must_drain or depth < DEEP_CAPS):
            return STEADY
        oldest = self.queue.oldest()
        assert oldest is not None, "a policy is asked for a batch of a queue that is not empty"
        if self._starves(oldest, limits.ladder.cap, now):
            self._must_drain = True
            return STEADY
        return DEEP if self._is_batch_cheap(limits.ladder.cap) else STEADY

    def _starves(self, oldest: Request, cap: int, now: float) -> bool:
        batch_s = self.context.costs.batch_time_s(cap, int(self._signs.usual_frames))
        patience_s = PATIENCE * max(self._signs.usual_wait_s, batch_s)
        patience_s = min(patience_s, self.context.config.max_wait_time / 2)
        if now - oldest.arrived >= patience_s:
            return True
        grown = len(self.queue) - self._signs.depth_at_switch
        return self._name == DEEP and grown > cap + LEFT_BEHIND * self._signs.num_shipped

    def _is_batch_cheap(self, cap: int) -> bool:
        batch_time_s, num_frames = self.context.costs.batch_time_s, int(self._signs.usual_frames)
        return batch_time_s(cap, num_frames) <= CHEAP_BATCH * cap * batch_time_s(1, num_frames)

    def _switch(self, name: str) -> None:
        log.info("adaptive goes from %s to %s: %d wait", self._name, name, len(self.queue))
        self._name = name
        self._current = self._make(name, self.context, self.queue)
        for request in self.queue:
            self._current.add(request)
        self._signs.begin(len(self.queue))
        self.num_switches += 1


class _Signs:
    """What the selections have shown of the queue so far.

    depth: waiting requests, smoothed. num_alone: selections in a row that found one waiting.
    usual_wait_s, usual_frames: what the middle one of a batch has waited, and its length, smoothed.
    depth_at_switch, num_shipped: who waited at the last switch, and who has left since.
    """

    def __init__(self) -> None:
        self.depth = 0.0
        self.num_alone = 0
        self.usual_wait_s = self.usual_frames = 0.0
        self.depth_at_switch = self.num_shipped = 0

    def see_depth(self, num_waiting: int) -> None:
        self.depth += DEPTH_WEIGHT * (num_waiting - self.depth)
        self.num_alone = self.num_alone + 1 if num_waiting == 1 else 0

    def see_batch(self, batch: Sequence[Request], limits: Limits, now: float) -> None:
        middle = batch[len(batch) // 2]
        self.usual_wait_s += BATCH_WEIGHT * (now - middle.arrived - self.usual_wait_s)
        self.usual_frames += BATCH_WEIGHT * (limits.padded_frames(middle) - self.usual_frames)
        self.num_shipped += len(batch)

    def begin(self, num_waiting: int) -> None:
        self.depth_at_switch, self.num_shipped = num_waiting, 0
