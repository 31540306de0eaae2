"""What a policy is, and the two ways to fill a batch that most of them share.

A policy orders and a limit bounds; neither takes anything out of the queue it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler.cost_table import CostTable
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.queue import WaitingQueue

MAX_REFUSALS = 1024
"""Requests that a fill looks at in vain before it ships what it has: a bound on the cost of one selection."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy may know beside its queue."""

    config: EngineConfig
    costs: CostTable


class Policy:
    """Chooses one batch of a queue; subclasses implement `select`.

    ships_oldest: it always ships the queue's head, and so needs no forced fill once that is overdue.
    has_guards: it keeps the guards on padding.
    num_switches: how often it has changed what it does.
    """

    ships_oldest = False
    has_guards = True
    num_switches = 0

    def __init__(self, context: Context, queue: WaitingQueue) -> None:
        self.context = context
        self.queue = queue

    def add(self, request: Request) -> None:
        """Learn that a request was filed; for policies that keep an order of their own."""

    def remove(self, request: Request) -> None:
        """Learn that a request has left the queue, dispatched or not."""

    def has_candidates(self, num_wanted: int, now: float) -> bool:
        """Tell whether so many of the queue, where nobody is overdue, may run together."""
        return len(self.queue) >= num_wanted

    def select(self, limits: Limits, now: float) -> Sequence[Request]:
        """Return a batch of the queue, which is not empty, within the limits, the most wanted first."""
        raise NotImplementedError


def fill_in_order(
    requests: Iterable[Request], limits: Limits, batch: Sequence[Request] = ()
) -> list[Request]:
    """Fill a batch strictly in order: no guards, and it stops at the first that would break the budget."""
    filled = list(batch)
    longest = max(map(limits.padded_frames, filled), default=0)
    for request in islice(requests, limits.ladder.cap - len(filled)):
        longest = max(longest, limits.padded_frames(request))
        if not limits.fits(len(filled) + 1, longest):
            break
        filled.append(request)
    return filled


def fill_with_peers(
    requests: Iterable[Request], limits: Limits, batch: Sequence[Request] = ()
) -> list[Request]:
    """Fill a batch in order, skipping whom the guards or the budget refuse beside those already in it."""
    filled = list(batch)
    lengths = [limits.padded_frames(request) for request in filled]
    shortest, longest, total = min(lengths, default=0), max(lengths, default=0), sum(lengths)
    window, cap = limits.fixed_window_frames, limits.ladder.cap
    num_refused = 0
    for request in requests:
        length = window or request.num_frames
        low = length if length < shortest or not filled else shortest
        high = length if length > longest else longest
        if limits.admits(len(filled) + 1, low, high, total + length):
            filled.append(request)
            shortest, longest, total = low, high, total + length
        else:
            num_refused += 1
        if len(filled) == cap or num_refused == MAX_REFUSALS:
            break
    return filled
