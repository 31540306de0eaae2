"""How other threads reach the engine's: they leave commands, it takes them between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

Command = Callable[[], None]

MAX_WAIT_S = 3600.0
"""The operating system knows no wait of centuries; who waits that long looks again every hour."""


class Inbox:
    """Commands for one thread, in the order in which they were left."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()

    def leave(self, command: Command) -> None:
        """Leave a command for the owner, from any thread."""
        self._commands.put(command)

    def take(self, timeout_s: float | None) -> Iterator[Command]:
        """Yield what was left, having waited up to `timeout_s` (None: for ever) for the first command."""
        try:
            if timeout_s is None or timeout_s > 0:
                wait_s = None if timeout_s is None else min(timeout_s, MAX_WAIT_S)
                yield self._commands.get(timeout=wait_s)
            while True:
                yield self._commands.get_nowait()
        except Empty:
            return
