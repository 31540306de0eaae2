"""Live streams at their own pace: each sends its speech as a microphone gives it, and every text is timed.

It knows nothing of who answers: see stream_systems.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.cores import busy_s
from oasr_backend.features import fbank
from oasr_backend.request import FRAMES_PER_SECOND


class StreamSystem(Protocol):
    """Something that transcribes live streams, and what it is called in tables."""

    name: str

    async def start(self) -> None:
        """Load the model and be ready."""

    def send(
        self, stream: int, number: int, samples: Samples, is_last: bool
    ) -> asyncio.Future[str]:
        """Send a stream's next piece; number 0 begins it. The future holds the text so far, or an error."""

    async def stop(self) -> None:
        """Give everything back."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """How streams are sent.

    piece_ms: audio of a request. chunk_frames: feature frames of an encoder chunk, window_frames: that one needs.
    """

    piece_ms: int = 160
    chunk_frames: int = 64
    window_frames: int = 67

    @property
    def piece_samples(self) -> int:
        return self.piece_ms * SAMPLE_RATE_HZ // 1000

    @property
    def chunk_ms(self) -> float:
        return self.chunk_frames * 1000 / FRAMES_PER_SECOND

    def chunks_of(self, num_samples: int) -> int:
        """Return how many encoder chunks so many samples complete."""
        num_frames = fbank.num_frames(num_samples)
        return max(0, (num_frames - self.window_frames) // self.chunk_frames + 1)


@dataclass
class Heard:
    """What one run of streams saw; latencies in seconds from when a piece was due.

    chunk_s: of pieces that complete an encoder chunk: from the last needed sample to its text.
    first_s: from a stream's begin to its first word. final_s: of the pieces that end a stream.
    lag_s: how late pieces were sent. texts: the final texts, by utterance.
    busy_cores: of the machine, all processes together, in the mean.
    """

    chunk_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    final_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    busy_cores: float = 0.0


async def alone(system: StreamSystem, utterances: Sequence[Samples], pacing: Pacing) -> list[str]:
    """Return the text of each utterance where no other stream is there, sent as fast as it is answered."""
    texts = []
    for index, samples in enumerate(utterances):
        text = ""
        for number, (piece, is_last) in enumerate(_pieces(samples, pacing)):
            text = await system.send(-1 - index, number, piece, is_last)
        texts.append(text)
    return texts


async def paced(
    system: StreamSystem,
    utterances: Sequence[Samples],
    num_streams: int,
    pacing: Pacing,
    seed: int,
    on_done: Callable[[], None] = lambda: None,
) -> Heard:
    """Run so many streams at once, each beginning within the first chunk's length, and return what was seen.

    `on_done` hears of every stream that has ended.
    """
    heard, rng = Heard(), random.Random(f"streams {seed}")
    began, busy_before_s = time.perf_counter(), busy_s()
    begin = began + 0.1
    await asyncio.gather(
        *(
            _speak(
                system,
                (stream, rng.randrange(len(utterances))),
                utterances,
                begin + rng.random() * pacing.chunk_ms / 1e3,
                pacing,
                heard,
                on_done,
            )
            for stream in range(num_streams)
        )
    )
    heard.busy_cores = (busy_s() - busy_before_s) / (time.perf_counter() - began)
    return heard


async def _speak(
    system: StreamSystem,
    who: tuple[int, int],
    utterances: Sequence[Samples],
    began: float,
    pacing: Pacing,
    heard: Heard,
    on_done: Callable[[], None],
) -> None:
    stream, utterance = who
    num_samples = num_chunks = 0
    answers = []
    has_words = False
    for number, (piece, is_last) in enumerate(_pieces(utterances[utterance], pacing)):
        num_samples += len(piece)
        due = began + num_samples / SAMPLE_RATE_HZ
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        heard.lag_s.append(time.perf_counter() - due)
        num_due = pacing.chunks_of(num_samples)
        completes_chunk, num_chunks = num_due > num_chunks, num_due

        def note(
            answer: asyncio.Future[str],
            due: float = due,
            completes_chunk: bool = completes_chunk,
            is_last: bool = is_last,
        ) -> None:
            nonlocal has_words
            if answer.cancelled() or answer.exception() is not None:
                heard.errors.append(str(answer.exception()))
                return
            now = time.perf_counter()
            if completes_chunk:
                heard.chunk_s.append(now - due)
            if answer.result() and not has_words:
                has_words = True
                heard.first_s.append(now - began)
            if is_last:
                heard.final_s.append(now - due)
                heard.texts.append((utterance, answer.result()))

        answers.append(system.send(stream, number, piece, is_last))
        answers[-1].add_done_callback(note)
    await asyncio.gather(*answers, return_exceptions=True)
    on_done()


def _pieces(samples: Samples, pacing: Pacing) -> list[tuple[Samples, bool]]:
    """Return an utterance as pieces, each with whether it is the last one."""
    size = pacing.piece_samples
    starts = range(0, max(len(samples), 1), size)
    return [(samples[start : start + size], start == starts[-1]) for start in starts]


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One run of streams, or the medians of several; see `Heard`.

    differing: final texts that are not those of the utterance alone.
    """

    chunks: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    first_p50_s: float
    final_p50_s: float
    final_p99_s: float
    lag_p99_s: float
    errors: float
    differing: float
    busy_cores: float


def figures_of(heard: Heard, expected: Sequence[str]) -> StreamFigures:
    """Return a run's figures; expected: the text of each utterance alone."""
    p50, p90, p99, most = _percentiles(heard.chunk_s, 50, 90, 99, 100)
    final_p50, final_p99 = _percentiles(heard.final_s, 50, 99)
    return StreamFigures(
        len(heard.chunk_s),
        p50,
        p90,
        p99,
        most,
        _percentiles(heard.first_s, 50)[0],
        final_p50,
        final_p99,
        _percentiles(heard.lag_s, 99)[0],
        len(heard.errors),
        sum(text != expected[utterance] for utterance, text in heard.texts),
        heard.busy_cores,
    )


def _percentiles(seconds: Sequence[float], *percents: float) -> list[float]:
    return [float(value) for value in np.percentile(seconds or [np.nan], percents)]
