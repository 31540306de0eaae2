"""What bounds one batch: its width and its padded frames. It orders nothing and takes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from oasr_backend.request import Request
from oasr_backend.scheduler.ladder import Ladder


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one padded batch.

    max_batch_frames: bound on longest × width, in frames; None is no bound.
    fixed_window_frames: what every row costs in padding where the encoder has a fixed window.
    """

    ladder: Ladder
    max_batch_frames: int | None = None
    fixed_window_frames: int | None = None

    def padded_frames(self, request: Request) -> int:
        """Return what one row costs before padding to its neighbours."""
        return self.fixed_window_frames or request.num_frames

    def fits(self, num_rows: int, longest_frames: int) -> bool:
        """Tell whether so many rows of that length may run together; one alone always may."""
        if num_rows > self.ladder.cap:
            return False
        if self.max_batch_frames is None or num_rows == 1:
            return True
        return num_rows * longest_frames <= self.max_batch_frames
