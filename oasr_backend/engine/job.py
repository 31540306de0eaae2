"""One utterance on its way through the engine: what was asked, its pieces, and what comes back.

It knows nothing of threads or of scheduling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from oasr_backend.errors import AsrError
from oasr_backend.models.base import (
    UNSPACED_LANGUAGES,
    Prepared,
    Samples,
    TranscribeOptions,
    Transcript,
    Word,
)
from oasr_backend.segment import Piece

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.25
"""Triton's answer whether a client is there takes a millisecond on a busy machine: nobody is asked who has waited, or
waited since he was asked, for less."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a caller asks.

    samples: (samples,) float32 in ±1, mono, at `sample_rate_hz`.
    deadline_s: seconds from acceptance after which no answer is wanted; `inf` for none.
    is_cancelled: asked before a piece is prepared or run, of who has waited `ASK_EVERY_S` since he was asked.
    """

    request_id: str
    samples: Samples
    sample_rate_hz: int = 16000
    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    priority: int = 0
    tenant: str | None = None
    deadline_s: float = inf
    is_cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller gets, exactly once: a transcript or an error.

    queue_s: from acceptance to the first batch; compute_s: all batches that held a piece of it.
    batch_sizes: rows of each of those batches.
    """

    request_id: str
    transcript: Transcript | None
    error: AsrError | None = None
    duration_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_sizes: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Row:
    """One row of a batch: a whole short utterance, or a piece of a long one."""

    job: Job
    start_s: float
    prepared: Prepared | None
    transcript: Transcript | None = None

    def finish(self, transcript: Transcript) -> None:
        """Keep the transcript and let the features go."""
        self.transcript = transcript
        self.prepared = None


class Pieces:
    """An utterance's pieces in order; looks one ahead, so that the last is known for the last."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._ahead = next(pieces, None)

    def take(self) -> tuple[Piece, bool]:
        """Return the next piece and whether it is the last."""
        piece = self._ahead
        assert piece is not None, "nothing follows the last piece"
        self._ahead = next(self._pieces, None)
        return piece, self._ahead is None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """An accepted utterance; only the engine's thread changes it once it is accepted."""

    utterance: Utterance
    on_done: Callable[[Result], None]
    duration_s: float
    accepted_at: float
    deadline_at: float
    pieces: Pieces | None = None
    asked_at: float = 0.0
    first_run_at: float | None = None
    compute_s: float = 0.0
    batch_sizes: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    waiting_ids: set[str] = field(default_factory=set)
    num_unfinished: int = 0
    is_preparing: bool = True
    is_exhausted: bool = False
    is_answered: bool = False

    @property
    def request_id(self) -> str:
        return self.utterance.request_id

    @property
    def is_complete(self) -> bool:
        """Every piece has been cut and transcribed."""
        return self.is_exhausted and not self.is_preparing and self.num_unfinished == 0

    def is_cancelled(self, now: float) -> bool:
        """Tell whether the client is known to be gone; any thread may ask."""
        if now < self.asked_at + ASK_EVERY_S:
            return False
        self.asked_at = now
        try:
            return self.utterance.is_cancelled()
        except Exception:
            log.exception("request %s: whether it is cancelled is not known", self.request_id)
            return False

    def release(self) -> None:
        """Let go of what an answered job needs no more: rows refer back to it, and would keep its samples."""
        self.rows = []
        self.pieces = None

    def result(self) -> Result:
        """Return the joined transcript of a complete job."""
        queue_s = (self.first_run_at or self.accepted_at) - self.accepted_at
        return Result(
            self.request_id,
            join_rows(self.rows),
            duration_s=self.duration_s,
            queue_s=queue_s,
            compute_s=self.compute_s,
            batch_sizes=tuple(self.batch_sizes),
        )


def join_rows(rows: list[Row]) -> Transcript:
    """Join the transcripts of an utterance's rows in order; times count from its start."""
    parts = [(row.start_s, row.transcript) for row in rows if row.transcript is not None]
    if len(parts) == 1:
        return parts[0][1]
    language = next((part.language for _, part in parts if part.language), None)
    space = "" if language in UNSPACED_LANGUAGES else " "
    tokens = tuple(token for _, part in parts for token in part.tokens)
    weight = sum(part.confidence * len(part.tokens) for _, part in parts)
    return Transcript(
        text=space.join(part.text for _, part in parts if part.text),
        tokens=tokens,
        words=tuple(_shift(word, start_s) for start_s, part in parts for word in part.words),
        confidence=weight / len(tokens) if tokens else 1.0,
        language=language,
    )


def _shift(word: Word, start_s: float) -> Word:
    return Word(word.text, word.start_s + start_s, word.end_s + start_s, word.confidence)
