"""Threads that hand responses to Triton, so that an engine's thread need not wait until Triton has taken each.

On a busy machine that takes a millisecond a response. It knows nothing of what is in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

NUM_THREADS = 4
"""They wait nearly all of the time."""


class Senders:
    """Runs sends in the background, several at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="oasr-send")

    def send(self, send: Callable[[], None]) -> None:
        """Have `send` run soon; what it raises is logged. From any thread, until `close`."""
        self._pool.submit(_send_or_log, send)

    def close(self) -> None:
        """Return once everything has been sent."""
        self._pool.shutdown()


def _send_or_log(send: Callable[[], None]) -> None:
    try:
        send()
    except Exception:
        log.exception("a response could not be delivered")
