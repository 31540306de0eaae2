"""The ladder of preferred batch sizes. It knows only numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Ladder:
    """Preferred batch sizes, ascending, and the cap that no batch exceeds.

    Without preferred sizes every size from 1 to the cap is a rung.
    """

    def __init__(self, preferred_sizes: Sequence[int], max_batch_size: int) -> None:
        self.sizes = tuple(sorted(set(preferred_sizes)))
        self.cap = self.sizes[-1] if self.sizes else max_batch_size
        self.smallest = self.sizes[0] if self.sizes else 1

    def largest_up_to(self, num_requests: int) -> int:
        """Return the largest rung that `num_requests` fill, 0 where they fill none."""
        if not self.sizes:
            return min(num_requests, self.cap)
        index = bisect_right(self.sizes, num_requests)
        return self.sizes[index - 1] if index else 0
