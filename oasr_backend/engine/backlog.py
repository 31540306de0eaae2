"""How much an engine has accepted and not yet answered, and who waits until there is room.

It knows nothing of what is accepted but its size. Any thread may call it.
"""

from __future__ import annotations

import threading

from oasr_backend.errors import UnavailableError

MEGABYTE = 1 << 20


class Backlog:
    """Counts utterances and the bytes of their samples, within two bounds."""

    def __init__(self, max_waiting: int, max_waiting_mb: int) -> None:
        self._max_waiting = max_waiting
        self._max_bytes = max_waiting_mb * MEGABYTE
        self._changed = threading.Condition()
        self._refusal: UnavailableError | None = None
        self._num_bytes = 0
        self.num_unanswered = 0

    @property
    def is_done(self) -> bool:
        """Nothing is accepted any more, and everything that was is answered."""
        return self._refusal is not None and not self.num_unanswered

    def wait_for_room(self) -> None:
        """Return once both bounds are kept, or nothing is accepted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room() or self._refusal is not None)

    def check_room(self) -> None:
        """Raise UnavailableError unless both bounds are kept."""
        with self._changed:
            if self.num_unanswered >= self._max_waiting:
                raise UnavailableError(
                    f"{self.num_unanswered} utterances are waiting; limit is {self._max_waiting} (max_waiting): try "
                    "again later, or raise the limit"
                )
            if self._num_bytes >= self._max_bytes:
                raise UnavailableError(
                    f"utterances of {self._num_bytes / MEGABYTE:.0f} MB are waiting; limit is "
                    f"{self._max_bytes // MEGABYTE} MB (max_waiting_mb): try again later, or raise the limit"
                )

    def accept(self, num_bytes: int) -> None:
        """Count one more, beyond the bounds too; raises UnavailableError where nothing is accepted any more."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            self.num_unanswered += 1
            self._num_bytes += num_bytes

    def answered(self, num_bytes: int) -> None:
        """Count one less."""
        with self._changed:
            self.num_unanswered -= 1
            self._num_bytes -= num_bytes
            self._changed.notify_all()

    def refuse(self, reason: UnavailableError) -> None:
        """Accept nothing from now on, for the first reason that is given."""
        with self._changed:
            self._refusal = self._refusal or reason
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self.num_unanswered < self._max_waiting and self._num_bytes < self._max_bytes
