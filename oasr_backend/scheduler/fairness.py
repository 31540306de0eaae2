"""Shares of the service among tenants, by audio-seconds served. It knows nothing of queues or policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping

Tenant = str | None
"""A tenant's name; None are the requests that name none, together."""


class TenantShares:
    """Audio-seconds served to each tenant, divided by its weight; the least served goes first."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._served_s: dict[Tenant, float] = {}

    def charge(self, tenant: Tenant, audio_s: float) -> None:
        """Count what a tenant was served."""
        self._served_s[tenant] = self.served_s(tenant) + audio_s / self._weight(tenant)

    def welcome(self, tenant: Tenant, active: Collection[Tenant]) -> None:
        """Let a tenant that comes back start at the least of the active ones, not at what it missed."""
        floor = min((self.served_s(other) for other in active), default=0.0)
        # Below the floor a count says nothing any more: forgetting it bounds the table.
        for other in [t for t, s in self._served_s.items() if s <= floor and t not in active]:
            del self._served_s[other]
        self._served_s[tenant] = max(floor, self.served_s(tenant))

    def served_s(self, tenant: Tenant) -> float:
        """Return a tenant's weighted audio-seconds."""
        return self._served_s.get(tenant, 0.0)

    def least_served_first(self, tenants: Collection[Tenant]) -> list[Tenant]:
        """Return the tenants in the order in which they go; equals by name."""
        return sorted(tenants, key=lambda tenant: (self.served_s(tenant), tenant or ""))

    def _weight(self, tenant: Tenant) -> float:
        return self._weights.get(tenant, 1.0) if tenant is not None else 1.0
