"""How long the simulated machine takes for a batch."""

from __future__ import annotations

from collections.abc import Callable

from oasr_backend.request import FRAMES_PER_SECOND

Service = Callable[[int, int], float]
"""Seconds of a batch, from its rows and its longest row in frames."""


def affine(fixed_s: float, slope_s: float) -> Service:
    """Return fixed_s + slope_s a padded second of audio."""
    return lambda num_rows, longest: fixed_s + slope_s * num_rows * longest / FRAMES_PER_SECOND


SERVICES: dict[str, Service] = {
    "cpu": affine(0.010, 0.0021),
    "gpu": affine(0.012, 0.00015),
    "linear": affine(0.005, 0.010),
}
