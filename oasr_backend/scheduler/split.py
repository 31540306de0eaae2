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
    rows = sorted(batch, key=lambda r: (r.num_frames, r.arrival_time or 0.0, r.request_id))
    parts: list[list[Request]] = []
    start = 0
    while start < len(rows):
        size = _part_size(rows, start, limits)
        parts.append(rows[start : start + size])
        start += size
    return parts


def _part_size(rows: Sequence[Request], start: int, limits: Limits) -> int:
    num_left = len(rows) - start
    if limits.max_batch_frames is not None:
        return _budgeted(rows, start, limits)
    if limits.ladder.preferred:
        return limits.ladder.largest_up_to(num_left) or num_left
    num_parts = -(-num_left // limits.ladder.cap)
    return -(-num_left // num_parts)


def _budgeted(rows: Sequence[Request], start: int, limits: Limits) -> int:
    end = start + 1
    while end < len(rows) and limits.fits(end + 1 - start, limits.padded_frames(rows[end])):
        end += 1
    return end - start
