"""Threads that hand responses to Triton, so that an engine's thread need not wait until Triton has taken each.

On a busy machine that takes a millisecond a response. It knows nothing of what is in them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

NUM_THREADS = 4
"""They wait nearly all of the time."""

Send = Callable[[], None]


class Senders:
    """Runs sends in the background, several at a time."""

    def __init__(self) -> None:
        # An executor makes a future of each, which nobody asks for and which takes as long as the rest.
        self._sends: SimpleQueue[Send | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"oasr-send-{number}", daemon=True)
            for number in range(NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, send: Send) -> None:
        """Have `send` run soon; what it raises is logged. From any thread, until `close`."""
        self._sends.put(send)

    def close(self) -> None:
        """Return once everything has been sent."""
        for _ in self._threads:
            self._sends.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (send := self._sends.get()) is not None:
            try:
                send()
            except Exception:
                log.exception("a response could not be delivered")
