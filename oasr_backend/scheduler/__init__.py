"""Who goes next, together with whom."""

from oasr_backend.scheduler.cost_table import CostTable
from oasr_backend.scheduler.policies import Policy, register_policy
from oasr_backend.scheduler.scheduler import Scheduler, SchedulerOutput

__all__ = ["CostTable", "Policy", "Scheduler", "SchedulerOutput", "register_policy"]
