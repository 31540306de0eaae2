"""The waiting utterances, and the one batch of them that a step may take.

A policy chooses; here are the rules that hold for any policy: the starvation bound, the ladder, the tenants' shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter

from oasr_backend.request import FRAMES_PER_SECOND, NO_TICKET, Request
from oasr_backend.scheduler.fairness import Tenant, TenantShares
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies import Context, make_policy
from oasr_backend.scheduler.policies.base import fill_in_order, fill_with_peers
from oasr_backend.scheduler.queue import WaitingQueue

_arrival = attrgetter("arrival_time", "request_id")


class _Lane:
    """One tenant's waiting utterances, or everyone's, and the policy that orders them."""

    def __init__(self, context: Context) -> None:
        self.queue = WaitingQueue(context.config.max_wait_time)
        self.policy = make_policy(context.config.schedule_policy, context, self.queue)

    def add(self, request: Request) -> None:
        self.queue.add(request)
        self.policy.add(request)

    def remove(self, request: Request) -> None:
        self.queue.remove(request)
        self.policy.remove(request)


class OfflineBacklog:
    """Utterances that wait for a batch."""

    def __init__(self, context: Context, limits: Limits, shares: TenantShares | None) -> None:
        """Divide the service by `shares`; None puts everyone in one lane. Raises ConfigError for an unknown policy."""
        self._context = context
        self._limits = limits
        self._any_size = replace(limits, ladder=Ladder((), limits.ladder.cap))
        self._shares = shares
        everyone = _Lane(context)
        self._lanes: dict[Tenant, _Lane] = {} if shares is not None else {None: everyone}
        # Across lanes.
        self._everyone = everyone.queue
        self._num_past_switches = 0

    def __len__(self) -> int:
        return len(self._everyone)

    def add(self, request: Request) -> None:
        """File a request; its arrival time and size are set."""
        if self._shares is not None:
            self._shares.enter(request.tenant)
            if request.tenant not in self._lanes:
                self._lanes[request.tenant] = _Lane(self._context)
        self._file(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        self._unfile(request)
        if self._shares is None:
            return
        self._shares.leave(request.tenant)
        lane = self._lanes[request.tenant]
        if not lane.queue:
            self._num_past_switches += lane.policy.num_switches
            del self._lanes[request.tenant]

    def refile(self, request: Request, change: Callable[[], None]) -> None:
        """Carry out a change of what orders a request."""
        self._unfile(request)
        change()
        self._file(request)

    @property
    def num_switches(self) -> int:
        """How often the policies have switched between others."""
        return self._num_past_switches + sum(
            lane.policy.num_switches for lane in self._lanes.values()
        )

    def due_at(self, now: float) -> float:
        """Return when a batch is due: `now` if at once, inf where nobody waits."""
        oldest = self._everyone.oldest()
        if oldest is None:
            return inf
        if self._everyone.is_overdue(oldest, now) or self._is_enough(now):
            return now
        return self._everyone.overdue_at(oldest)

    def take_batch(self, now: float) -> list[Request]:
        """Take the batch of this step out of the backlog, in order of arrival; empty where work is held back."""
        batch = sorted(self._choose(now), key=_arrival)
        for request in batch:
            if self._shares is not None:
                self._shares.charge(request.tenant, request.num_frames / FRAMES_PER_SECOND)
            self.remove(request)
        return batch

    def _choose(self, now: float) -> Sequence[Request]:
        oldest = self._everyone.oldest()
        if oldest is None:
            return []
        if self._everyone.is_overdue(oldest, now):
            lane = self._lane_of(oldest)
            if lane.policy.ships_oldest:
                return self._with_others(lane, lane.policy.select(self._any_size, now), now)
            return fill_in_order(self._in_order(now), self._limits)
        if not self._is_enough(now):
            return []
        return self._selected(now)

    def _is_enough(self, now: float) -> bool:
        """Tell whether as many wait as the smallest rung needs, of those who may run together."""
        smallest = self._limits.ladder.smallest
        if len(self) < smallest:
            return False
        return len(self._lanes) > 1 or self._next_lane().policy.has_candidates(smallest, now)

    def _selected(self, now: float) -> Sequence[Request]:
        """Return the tenant's batch whose turn it is: as much of its own as fills a rung together with others.

        Where it fills none, the bounds refused all but the first: that goes alone.
        """
        lane, ladder = self._next_lane(), self._limits.ladder
        if len(self._lanes) > 1 and len(lane.queue) < ladder.cap:
            selected = lane.policy.select(self._any_size, now)
            filled = self._with_others(lane, selected, now)
            size = ladder.largest_up_to(len(filled))
            if size >= len(selected):
                return filled[:size]
        selected = lane.policy.select(self._limits, now)
        return selected[: ladder.largest_up_to(len(selected)) or 1]

    def _with_others(
        self, lane: _Lane, selected: Sequence[Request], now: float
    ) -> Sequence[Request]:
        """Fill a tenant's batch up with others, unless its policy has left some of its own out of it on purpose."""
        is_whole = len(selected) == len(lane.queue) or not lane.policy.ships_oldest
        if len(self._lanes) == 1 or len(selected) == self._limits.ladder.cap or not is_whole:
            return selected
        taken = {request.ticket for request in selected}
        others = (request for request in self._in_order(now) if request.ticket not in taken)
        fill = fill_with_peers if lane.policy.has_guards else fill_in_order
        return fill(others, self._limits, selected)

    def _in_order(self, now: float) -> Iterator[Request]:
        """Yield everyone: the overdue oldest first, then the tenants in turn."""
        yield from self._everyone.overdue(now)
        for tenant in self._tenants_in_turn():
            queue = self._lanes[tenant].queue
            yield from (r for r in queue.in_order(now) if not queue.is_overdue(r, now))

    def _tenants_in_turn(self) -> Iterator[Tenant]:
        if self._shares is None:
            return iter(self._lanes)
        # Those of streams have shares, too.
        return (tenant for tenant in self._shares.least_served_first() if tenant in self._lanes)

    def _next_lane(self) -> _Lane:
        return self._lanes[next(self._tenants_in_turn())]

    def _lane_of(self, request: Request) -> _Lane:
        return self._lanes[None if self._shares is None else request.tenant]

    def _file(self, request: Request) -> None:
        if self._shares is not None:
            self._everyone.add(request)
        self._lane_of(request).add(request)

    def _unfile(self, request: Request) -> None:
        self._lane_of(request).remove(request)
        if self._shares is not None:
            self._everyone.remove(request)
        request.ticket = NO_TICKET
