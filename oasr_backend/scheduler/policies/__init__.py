"""Who goes next, together with whom: the policies by name."""

from __future__ import annotations

from collections.abc import Callable

from oasr_backend.errors import ConfigError
from oasr_backend.scheduler.policies.adaptive import Adaptive
from oasr_backend.scheduler.policies.arrival import Bucket, FirstComeFirstServed
from oasr_backend.scheduler.policies.base import Context, Policy
from oasr_backend.scheduler.policies.ratio import HighestResponseRatioNext
from oasr_backend.scheduler.policies.runs import Cost, Window
from oasr_backend.scheduler.policies.shortest import ShortestJobFirst
from oasr_backend.scheduler.queue import WaitingQueue

__all__ = ["Context", "Policy", "make_policy", "register_policy"]

MakePolicy = Callable[[Context, WaitingQueue], Policy]

_POLICIES: dict[str, MakePolicy] = {
    "fcfs": FirstComeFirstServed,
    "bucket": Bucket,
    "window": Window,
    "sjf": ShortestJobFirst,
    "hrrn": HighestResponseRatioNext,
    "cost": Cost,
}


def register_policy(name: str, make: MakePolicy) -> None:
    """Make a policy available as `schedule_policy`; the starvation bound holds for it as for ours."""
    _POLICIES[name] = make


def make_policy(name: str, context: Context, queue: WaitingQueue) -> Policy:
    """Return a new policy of that name for a queue, or raise ConfigError naming those that exist."""
    if name not in _POLICIES:
        known = ", ".join(sorted(_POLICIES))
        raise ConfigError(
            f"schedule_policy is {name!r}; it must be one of {known}: choose one of them"
        )
    return _POLICIES[name](context, queue)


register_policy("adaptive", lambda context, queue: Adaptive(context, queue, make_policy))
