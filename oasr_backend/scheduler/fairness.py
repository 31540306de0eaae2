"""Shares of the service among tenants, by audio-seconds served. It knows nothing of queues or policies."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from sortedcontainers import SortedList

Tenant = str | None
"""A tenant's name; None are the requests that name none, together."""

MAX_ABSENT = 4096
"""Tenants without requests whose service is remembered: clients choose names, and the table must not grow with them."""

_Turn = tuple[float, bool, str]
"""A tenant's place among others: what it was served, whether it has a name, its name."""


class TenantShares:
    """Audio-seconds served to each tenant, divided by its weight; of those active the least served goes first.

    A tenant is active while it has requests. One that comes back starts at the least of the active ones, not at what
    it missed; so whoever was served less than that needs no entry.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._served_s: dict[Tenant, float] = {}
        self._num_requests: dict[Tenant, int] = {}
        self._turns: SortedList[_Turn] = SortedList()  # of the active ones
        self._absent: list[_Turn] = []  # a heap of the others, some of them stale
        # Nobody begins below it.
        self._floor_s = 0.0

    def enter(self, tenant: Tenant) -> None:
        """Count one more request of a tenant."""
        num_requests = self._num_requests.get(tenant, 0)
        self._num_requests[tenant] = num_requests + 1
        if not num_requests:
            self._raise_floor()
            self._served_s[tenant] = max(self._floor_s, self.served_s(tenant))
            self._turns.add(self._turn(tenant))

    def leave(self, tenant: Tenant) -> None:
        """Count one request less."""
        self._num_requests[tenant] -= 1
        if not self._num_requests[tenant]:
            del self._num_requests[tenant]
            self._turns.remove(self._turn(tenant))
            self._raise_floor()
            self._remember(tenant)

    def charge(self, tenant: Tenant, audio_s: float) -> None:
        """Count what a tenant, active or not, was served."""
        is_active = tenant in self._num_requests
        if is_active:
            self._turns.remove(self._turn(tenant))
        self._served_s[tenant] = self.served_s(tenant) + audio_s / self._weight(tenant)
        if is_active:
            self._turns.add(self._turn(tenant))
        else:
            self._remember(tenant)

    def served_s(self, tenant: Tenant) -> float:
        """Return a tenant's weighted audio-seconds."""
        return self._served_s.get(tenant, self._floor_s)

    def least_served_first(self) -> Iterator[Tenant]:
        """Yield the active tenants in the order in which they go; equals by name."""
        return (name if is_named else None for _, is_named, name in self._turns)

    def _raise_floor(self) -> None:
        """Follow the least of the active ones, and forget the absent whom it has passed."""
        if self._turns:
            self._floor_s = max(self._floor_s, self._turns[0][0])
        while self._absent and self._absent[0][0] <= self._floor_s:
            self._forget_least()

    def _remember(self, tenant: Tenant) -> None:
        """Keep what an absent tenant was served; beyond MAX_ABSENT the least served start where newcomers do."""
        heapq.heappush(self._absent, self._turn(tenant))
        while len(self._absent) > MAX_ABSENT:
            self._floor_s = max(self._floor_s, self._forget_least())

    def _forget_least(self) -> float:
        """Drop the first of the absent; return what it was served, 0 where the entry was stale."""
        served_s, is_named, name = heapq.heappop(self._absent)
        tenant = name if is_named else None
        if tenant in self._num_requests or self._served_s.get(tenant) != served_s:
            return 0.0
        del self._served_s[tenant]
        return served_s

    def _turn(self, tenant: Tenant) -> _Turn:
        return self.served_s(tenant), tenant is not None, tenant or ""

    def _weight(self, tenant: Tenant) -> float:
        return self._weights.get(tenant, 1.0) if tenant is not None else 1.0
