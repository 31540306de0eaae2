"""The end of a stub whose tritonserver is gone.

Triton's stub looks whether its server lives, but not while it waits for a lock in shared memory that the server has
died with: under load it stays for ever.
"""

from __future__ import annotations

import os
import threading
import time

LOOK_EVERY_S = 1.0


def end_with_parent() -> None:
    """Have this process end, soon after the one that started it has."""
    threading.Thread(target=_watch, args=(os.getppid(),), name="oasr-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)
