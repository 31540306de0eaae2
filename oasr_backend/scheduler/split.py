"""A list of utterances, all at hand, cut into batches. It knows nothing of waiting."""

from __future__ import annotations

from collections.abc import Sequence

from oasr_backend.request import Request
from oasr_backend.scheduler.limits import Limits


def split(batch: Sequence[Request], limits: Limits) -> list[list[Request]]:
    """Cut `batch`, shortest first, into parts within the bounds.

    With a frame budget greedily; else by the largest rungs that the rest fills, the remainder as it is; else, without
    preferred sizes, into the fewest parts of the cap, whose sizes differ by at most one.
    """
    rest = sorted(batch, key=lambda r: (r.num_frames, r.arrival_time or 0.0, r.request_id))
    parts: list[list[Request]] = []
    while rest:
        size = _part_size(rest, limits)
        parts.append(rest[:size])
        rest = rest[size:]
    return parts


def _part_size(rest: Sequence[Request], limits: Limits) -> int:
    if limits.max_batch_frames is not None:
        return _budgeted(rest, limits)
    if limits.ladder.preferred:
        return limits.ladder.largest_up_to(len(rest)) or len(rest)
    num_parts = -(-len(rest) // limits.ladder.cap)
    return -(-len(rest) // num_parts)


def _budgeted(rest: Sequence[Request], limits: Limits) -> int:
    size = 1
    while size < len(rest) and limits.fits(size + 1, limits.padded_frames(rest[size])):
        size += 1
    return size
