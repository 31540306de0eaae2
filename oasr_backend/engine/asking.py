"""Whom to ask whether his client is still there.

Triton's answer takes a millisecond on a busy machine, in which a thread of the engine could have run a good part of a
short batch. It knows nothing of batches or of Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oasr_backend.engine.job import Job

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.25
"""Nobody is asked who has waited, or waited since he was asked, for less."""

LONG_S = 0.05
"""Before so long a batch everybody is asked."""

NUM_SURE = 32
ASKED_OF = 8
"""Where so many in a row were still there, one in so many is asked before short batches, until one is gone: clients
that give up do so together."""


class Asking:
    """Asks those whom it pays to ask. Any thread may call it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_present = 0
        self._num_spared = 0

    def is_cancelled(self, job: Job, work_s: float) -> bool:
        """Tell whether the client of a job is known to be gone, before work of `work_s` seconds for him."""
        now = self._clock()
        if now < job.asked_at + ASK_EVERY_S or self._is_spared(work_s):
            return False
        job.asked_at = now
        try:
            is_gone = job.utterance.is_cancelled()
        except Exception:
            log.exception("request %s: whether it is cancelled is not known", job.request_id)
            return False
        self._num_present = 0 if is_gone else self._num_present + 1
        return is_gone

    def _is_spared(self, work_s: float) -> bool:
        if work_s >= LONG_S or self._num_present < NUM_SURE:
            return False
        self._num_spared = (self._num_spared + 1) % ASKED_OF
        return self._num_spared != 0
