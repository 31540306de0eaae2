"""The open loop: requests leave when they are due, whatever became of those before, and each is timed from then.

It knows neither who answers nor what is asked. A latency begins at the *intended* time: a generator or a server that
falls behind cannot hide it (coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from oasr_backend.benchmark.arrivals import Due


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request; seconds of the run. `error` is None where there is a text."""

    utterance: int
    due_s: float
    sent_s: float
    done_s: float
    text: str
    error: str | None = None

    @property
    def latency_s(self) -> float:
        return self.done_s - self.due_s

    @property
    def lag_s(self) -> float:
        """How late the generator sent it."""
        return self.sent_s - self.due_s


class RefusedError(Exception):
    """A system gave no text, for the reason that it says."""


GONE = "the connection is gone"
"""Begins the error of a request whose server was lost: what was measured then is none of the system's figures."""

Ask = Callable[[int], Awaitable[str]]
"""Has an utterance, by its number, transcribed; raises RefusedError where there is no text."""


async def drive(arrivals: Sequence[Due], ask: Ask, on_done: Callable[[], None]) -> list[Answer]:
    """Send every request at its time and return the answers in the order of the requests; `on_done` hears of each."""
    started = time.perf_counter()

    async def one(due: Due) -> Answer:
        await asyncio.sleep(max(0.0, due.time_s - (time.perf_counter() - started)))
        sent_s = time.perf_counter() - started
        text, error = "", None
        try:
            text = await ask(due.utterance)
        except RefusedError as refused:
            error = str(refused)
        on_done()
        return Answer(due.utterance, due.time_s, sent_s, time.perf_counter() - started, text, error)

    return await asyncio.gather(*(one(due) for due in arrivals))


async def one_by_one(num_utterances: int, ask: Ask, on_done: Callable[[], None]) -> list[Answer]:
    """Ask for every utterance once, each after the answer to the one before: the texts without load."""
    answers = []
    for number in range(num_utterances):
        answers += await drive([Due(0.0, number)], ask, on_done)
    return answers
