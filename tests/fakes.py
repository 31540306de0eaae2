"""Test seams: a clock that tests move, an executor that runs at once, a recognizer whose answers can be calculated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from oasr_backend.errors import ClientError
from oasr_backend.models.base import Prepared, Samples, TranscribeOptions, Transcript


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class InlineExecutor(Executor):
    """Runs what is submitted at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


POISON = 0.25
"""A first sample of this value makes the fake recognizer raise whenever it is in the batch."""

UNPREPARABLE = 0.125
"""A first sample of this value makes the fake recognizer's preparation raise."""


class FakeRecognizer:
    """Answers each piece with its number of samples; a batch takes 0.1 s and 0.01 s a row of the clock."""

    max_piece_frames = 100
    fixed_window_frames = None

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.batches: list[list[int]] = []
        self.rehearsed: list[tuple[int, int]] = []

    def check_options(self, options: TranscribeOptions) -> None:
        if options.language not in (None, "en"):
            raise ClientError(f"language is {options.language!r}; it must be 'en'")

    def cut(self, samples: Samples) -> int:
        return self.max_piece_frames * 160

    def prepare(self, samples: Samples, options: TranscribeOptions) -> Prepared:
        if len(samples) and samples[0] == UNPREPARABLE:
            raise RuntimeError("no features")
        features = np.asarray(samples[None, :], dtype=np.float32)
        speech_frames = np.count_nonzero(samples) // 160 if options.speech_frames else None
        return Prepared(
            features, len(samples) // 160, options, bool(np.any(samples)), speech_frames
        )

    def transcribe(self, batch: Sequence[Prepared]) -> list[Transcript]:
        lengths = [piece.features.shape[1] for piece in batch]
        self.batches.append(lengths)
        self.clock.advance(0.1 + 0.01 * len(batch))
        if any(piece.features[0, 0] == POISON for piece in batch):
            raise RuntimeError("poisoned")
        return [Transcript(str(length), tokens=(length,)) for length in lengths]

    def rehearse(self, num_rows: int, num_frames: int) -> None:
        self.rehearsed.append((num_rows, num_frames))
        self.clock.advance(self.rehearsal_s(num_rows, num_frames))

    def rehearsal_s(self, num_rows: int, num_frames: int) -> float:
        return 0.1 + 0.01 * num_rows
