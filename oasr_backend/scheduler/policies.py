"""Who goes next, together with whom: one small class for each policy, found by name.

A policy orders and a budget limits; neither takes anything out of the queue it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from oasr_backend.errors import ConfigError
from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.queue import WaitingQueue


class Policy(Protocol):
    """Chooses one batch from the waiting requests, none of which is overdue."""

    def select(self, queue: WaitingQueue, limits: Limits, now: float) -> Sequence[Request]:
        """Return at least one request of a queue that is not empty, the most wanted first."""


def fill_in_order(queue: WaitingQueue, limits: Limits, now: float) -> list[Request]:
    """Fill a batch in the queue's order and stop at the first request that would break a bound."""
    batch: list[Request] = []
    longest = 0
    for request in queue.in_order(now):
        longest = max(longest, limits.padded_frames(request))
        if not limits.fits(len(batch) + 1, longest):
            break
        batch.append(request)
    return batch


class FirstComeFirstServed:
    """Arrival order within the classes."""

    def select(self, queue: WaitingQueue, limits: Limits, now: float) -> Sequence[Request]:
        return fill_in_order(queue, limits, now)


_POLICIES: dict[str, Callable[[], Policy]] = {}


def register_policy(name: str, make: Callable[[], Policy]) -> None:
    """Make a policy available as `schedule_policy`; the starvation bound holds for it as for ours."""
    _POLICIES[name] = make


def make_policy(name: str) -> Policy:
    """Return a new policy of that name, or raise ConfigError naming those that exist."""
    if name not in _POLICIES:
        known = ", ".join(sorted(_POLICIES))
        raise ConfigError(f"schedule_policy is {name!r}; it must be one of {known}")
    return _POLICIES[name]()


register_policy("fcfs", FirstComeFirstServed)
