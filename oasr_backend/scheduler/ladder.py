"""The ladder of preferred batch sizes. It knows only numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Ladder:
    """Preferred batch sizes, ascending, and the cap that no batch exceeds.

    Without preferred sizes every size from 1 to the cap is a rung.
    """

    def __init__(self, preferred_sizes: Sequence[int], max_batch_size: int) -> None:
        self.preferred = tuple(sorted(set(preferred_sizes)))
        self.rungs = self.preferred or tuple(range(1, max_batch_size + 1))
        self.smallest, self.cap = self.rungs[0], self.rungs[-1]

    def up_to(self, num_requests: int) -> Sequence[int]:
        """Return the rungs that so many requests fill, ascending."""
        return self.rungs[: bisect_right(self.rungs, num_requests)]

    def largest_up_to(self, num_requests: int) -> int:
        """Return the largest rung that so many requests fill, 0 where they fill none."""
        filled = self.up_to(num_requests)
        return filled[-1] if filled else 0
