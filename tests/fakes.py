"""Test seams: a clock that tests move, an executor that runs at once, a recognizer whose answers can be calculated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from oasr_backend.errors import ClientError
from oasr_backend.models.base import Prepared, Samples, TranscribeOptions, Transcript
from oasr_backend.models.streams import Partial


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
    parallel_batches = 1
    prepares_at_once = False

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.batches: list[list[int]] = []
        self.rehearsed: list[tuple[int, int]] = []

    def window_frames(self, num_frames: int) -> int:
        return self.fixed_window_frames or num_frames

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
        lengths = [piece.inputs.shape[1] for piece in batch]
        self.batches.append(lengths)
        self.clock.advance(0.1 + 0.01 * len(batch))
        if any(piece.inputs[0, 0] == POISON for piece in batch):
            raise RuntimeError("poisoned")
        return [Transcript(str(length), tokens=(length,)) for length in lengths]

    def rehearse(self, num_rows: int, num_frames: int) -> None:
        self.rehearsed.append((num_rows, num_frames))
        self.clock.advance(self.rehearsal_s(num_rows, num_frames))

    def runs(self) -> dict[str, int]:
        return {"replay": len(self.batches)}

    def rehearsal_s(self, num_rows: int, num_frames: int) -> float:
        return 0.1 + 0.01 * num_rows


class FakeStream:
    """Hears a word a chunk of 0.1 s: the chunk's first sample as a whole number of hundredths."""

    def __init__(self) -> None:
        self.samples = np.zeros(0, np.float32)
        self.words: list[str] = []
        self.num_chunks_run = self.num_chunks_due = 0
        self.is_full = self.has_block = self.is_swapped = False

    def accept(self, samples: Samples) -> None:
        if len(samples) and samples[0] == UNPREPARABLE:
            raise RuntimeError("no features")
        self.samples = np.concatenate([self.samples, samples])
        self.num_chunks_due = len(self.samples) // 1600

    def finish(self) -> None:
        self.num_chunks_due = -(-len(self.samples) // 1600)

    def partial(self, words: bool) -> Partial:
        return Partial(Transcript(" ".join(self.words)), stable_text=" ".join(self.words[:-1]))


class FakeStreamingModel:
    """Holds one block a stream, of `num_blocks`; a forward takes 0.01 s and 0.001 s a row of the clock."""

    chunk_frames = 10
    parallel_batches = 2

    def __init__(self, clock: FakeClock, num_blocks: int = 100, max_chunks: int = 1000) -> None:
        self.clock = clock
        self.num_blocks, self.num_blocks_used = num_blocks, 0
        self.max_chunks = max_chunks
        self.batches: list[tuple[int, int]] = []

    def runs(self) -> dict[str, int]:
        return {"replay": len(self.batches)}

    def open(self, options: TranscribeOptions, sample_rate_hz: int) -> FakeStream:
        if options.language not in (None, "en"):
            raise ClientError(f"language is {options.language!r}; it must be 'en'")
        return FakeStream()

    def reserve(self, stream: FakeStream) -> bool:
        if not stream.has_block and self.num_blocks_used < self.num_blocks:
            self.num_blocks_used += 1
            stream.has_block, stream.is_swapped = True, False
        return stream.has_block

    def prepare(self, streams: Sequence[FakeStream], num_rows: int) -> tuple[list[float], int]:
        assert len(streams) <= num_rows
        assert all(s.has_block and s.num_chunks_run < s.num_chunks_due for s in streams)
        return [float(s.samples[s.num_chunks_run * 1600]) for s in streams], num_rows

    def forward(self, inputs: tuple[list[float], int]) -> list[str]:
        heard, num_rows = inputs
        self.batches.append((len(heard), num_rows))
        self.clock.advance(0.01 + 0.001 * num_rows)
        if POISON in heard:
            raise RuntimeError("poisoned")
        return [f"{first * 100:.0f}" for first in heard]

    def take(self, streams: Sequence[FakeStream], inputs: object, outputs: list[str]) -> None:
        for stream, word in zip(streams, outputs, strict=True):
            stream.words.append(word)
            stream.num_chunks_run += 1
            stream.is_full = stream.num_chunks_run == self.max_chunks

    def swap_out(self, stream: FakeStream) -> None:
        self.num_blocks_used -= stream.has_block
        stream.has_block, stream.is_swapped = False, True

    def close(self, stream: FakeStream) -> None:
        self.num_blocks_used -= stream.has_block
        stream.has_block = False
