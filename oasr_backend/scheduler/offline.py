"""The waiting utterances, and the one batch of them that a step may take.

A policy chooses; here are the rules that hold for any policy: the starvation bound, the ladder, the tenants' shares.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from oasr_backend.request import FRAMES_PER_SECOND, Request
from oasr_backend.scheduler.fairness import Tenant, TenantShares
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies import Context, make_policy
from oasr_backend.scheduler.policies.base import fill_in_order, fill_with_peers
from oasr_backend.scheduler.queue import WaitingQueue


class _Lane:
    """One tenant's waiting utterances, or everyone's, and the policy that orders them."""

    def __init__(self, context: Context) -> None:
        self.queue = WaitingQueue(context.config.max_wait_time)
        self.policy = make_policy(context.config.schedule_policy, context, self.queue)


class OfflineBacklog:
    """Utterances that wait for a batch."""

    def __init__(self, context: Context, limits: Limits, shares: TenantShares | None) -> None:
        """Divide the service by `shares`; None puts everyone in one lane."""
        self._context = context
        self._limits = limits
        self._forced_limits = replace(limits, ladder=Ladder((), limits.ladder.cap))
        self._shares = shares
        self._lanes: dict[Tenant, _Lane] = {}
        self._num_waiting = 0
        self._num_past_switches = 0
        if shares is None:
            self._lanes[None] = _Lane(context)

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, request: Request) -> None:
        """File a request; its arrival time and size are set."""
        lane = self._lanes.get(self._tenant_of(request)) or self._open_lane(request.tenant)
        lane.queue.add(request)
        lane.policy.add(request)
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        tenant = self._tenant_of(request)
        lane = self._lanes[tenant]
        lane.queue.remove(request)
        lane.policy.remove(request)
        self._num_waiting -= 1
        if self._shares is not None and not lane.queue:
            self._num_past_switches += lane.policy.num_switches
            del self._lanes[tenant]

    @property
    def num_switches(self) -> int:
        """How often the policies have switched between others."""
        return self._num_past_switches + sum(
            lane.policy.num_switches for lane in self._lanes.values()
        )

    def oldest(self) -> Request | None:
        """Return the request that arrived first."""
        heads = (lane.queue.oldest() for lane in self._lanes.values())
        return min((r for r in heads if r is not None), key=_arrival, default=None)

    def take_batch(self, now: float) -> list[Request]:
        """Take the batch of this step out of the backlog, in order of arrival; empty where work is held back."""
        batch = sorted(self._choose(now), key=_arrival)
        for request in batch:
            self.remove(request)
            if self._shares is not None:
                self._shares.charge(request.tenant, request.num_frames / FRAMES_PER_SECOND)
        return batch

    def _choose(self, now: float) -> Sequence[Request]:
        oldest = self.oldest()
        if oldest is None:
            return []
        lane = self._lanes[self._tenant_of(oldest)]
        if lane.queue.is_overdue(oldest, now):
            if lane.policy.ships_oldest:
                return lane.policy.select(self._forced_limits, now)
            return fill_in_order(self._in_order(now), self._limits)
        if self._num_waiting < self._limits.ladder.smallest:
            return []
        return self._on_ladder(self._selected(now))

    def _selected(self, now: float) -> Sequence[Request]:
        tenants = self._tenants_in_turn()
        selected = self._lanes[tenants[0]].policy.select(self._limits, now)
        if len(tenants) == 1 or len(selected) >= self._limits.ladder.cap:
            return selected
        others = chain.from_iterable(self._lanes[t].queue.in_order(now) for t in tenants[1:])
        return fill_with_peers(others, self._limits, selected)

    def _on_ladder(self, selected: Sequence[Request]) -> Sequence[Request]:
        """Keep the largest rung that the selected fill; where they fill none, the bounds refused: the first alone."""
        return selected[: self._limits.ladder.largest_up_to(len(selected)) or 1]

    def _in_order(self, now: float) -> Iterator[Request]:
        """Yield everyone: the overdue oldest first, then the tenants in turn."""
        overdue = (lane.queue.overdue(now) for lane in self._lanes.values())
        yield from heapq.merge(*overdue, key=_arrival)
        for tenant in self._tenants_in_turn():
            queue = self._lanes[tenant].queue
            yield from (r for r in queue.in_order(now) if not queue.is_overdue(r, now))

    def _tenants_in_turn(self) -> list[Tenant]:
        if self._shares is None or len(self._lanes) == 1:
            return list(self._lanes)
        return self._shares.least_served_first(self._lanes)

    def _tenant_of(self, request: Request) -> Tenant:
        return None if self._shares is None else request.tenant

    def _open_lane(self, tenant: Tenant) -> _Lane:
        assert self._shares is not None
        self._shares.welcome(tenant, self._lanes)
        lane = self._lanes[tenant] = _Lane(self._context)
        return lane


def _arrival(request: Request) -> tuple[float, str]:
    return request.arrived, request.request_id
