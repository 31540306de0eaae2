"""The policies that go by arrival: "fcfs", and "bucket", which looks for peers of the oldest."""

from __future__ import annotations

from collections.abc import Sequence

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies.base import Policy, fill_in_order, fill_with_peers


class FirstComeFirstServed(Policy):
    """Arrival order within the classes, whatever the padding."""

    has_guards = False

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_in_order(self.queue.in_order(now), limits)


class Bucket(Policy):
    """The oldest of the best class, and the first peers in order that the guards admit beside it."""

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        return fill_with_peers(self.queue.in_order(now), limits)
