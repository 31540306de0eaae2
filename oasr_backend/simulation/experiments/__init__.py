"""The named experiments: each says what holds of the policies, and measures whether it does."""

from oasr_backend.simulation.experiments.best_fifo import best_fifo
from oasr_backend.simulation.experiments.claims import Claim, Experiment
from oasr_backend.simulation.experiments.cost_policy import cost_policy
from oasr_backend.simulation.experiments.drift import drift
from oasr_backend.simulation.experiments.one_at_a_time import one_at_a_time
from oasr_backend.simulation.experiments.padding import padding

EXPERIMENTS: dict[str, Experiment] = {
    "padding": padding,
    "one-at-a-time": one_at_a_time,
    "cost": cost_policy,
    "best-fifo": best_fifo,
    "drift": drift,
}

__all__ = ["EXPERIMENTS", "Claim", "Experiment"]
