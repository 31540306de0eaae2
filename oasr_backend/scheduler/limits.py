"""What bounds one batch: width, padded frames, and the two guards on padding. It orders nothing and takes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from oasr_backend.request import Request
from oasr_backend.scheduler.ladder import Ladder


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one padded batch.

    max_batch_frames: bound on longest × rows, in frames; it protects memory and holds always. None is no bound.
    length_bucket_ratio: least shortest / longest of a batch; 0 is no bound.
    max_offline_pad_ratio: greatest (longest × rows) / sum of lengths; 0 is no bound.
    fixed_window_frames: what every row costs in padding where the encoder has a fixed window.
    """

    ladder: Ladder
    max_batch_frames: int | None = None
    length_bucket_ratio: float = 0.0
    max_offline_pad_ratio: float = 0.0
    fixed_window_frames: int | None = None

    def padded_frames(self, request: Request) -> int:
        """Return what one row costs before it is padded to its neighbours."""
        return self.fixed_window_frames or request.num_frames

    def fits(self, num_rows: int, longest_frames: int) -> bool:
        """Tell whether so many rows of that length may run together, forced or not; one alone always may."""
        if num_rows > self.ladder.cap:
            return False
        if self.max_batch_frames is None or num_rows == 1:
            return True
        return num_rows * longest_frames <= self.max_batch_frames

    def admits(self, num_rows: int, shortest: int, longest: int, total: int) -> bool:
        """Tell whether a batch of that shape keeps every bound and both guards; one row alone always does."""
        if num_rows == 1:
            return True
        if longest and shortest / longest < self.length_bucket_ratio:
            return False
        if total and 0 < self.max_offline_pad_ratio < longest * num_rows / total:
            return False
        return self.fits(num_rows, longest)
