"""Live streams at their own pace: each sends its speech as a microphone gives it, and every text is timed.

A run is of so many lines. Each begins at a time of its own, and the next stream follows when one ends: what is measured
is a while in which all lines speak, and streams begin and end all along, as they do in a service. It knows nothing of
who answers: see stream_systems.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    busy_cores: of the machine, all processes together, in the mean. own_cores: this process's part of them.
    """

    chunk_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    final_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    busy_cores: float = 0.0
    own_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class _Measured:
    """The while that counts, in seconds of the clock."""

    begin: float
    end: float

    def holds(self, time_s: float) -> bool:
        return self.begin <= time_s < self.end


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
    num_lines: int,
    pacing: Pacing,
    seed: int,
    on_done: Callable[[], None] = lambda: None,
) -> Heard:
    """Have so many lines speak at once, one utterance after the other, and return what was seen.

    Lines begin evenly spread over an utterance's length; what counts is the next length, in which each ends a stream
    and begins another one. `on_done` hears of every line that is done.
    """
    heard, rng = Heard(), random.Random(f"streams {seed}")
    length_s = max(len(samples) for samples in utterances) / SAMPLE_RATE_HZ
    began = time.perf_counter() + 0.1
    measured = _Measured(began + length_s, began + 2 * length_s)

    async def speak(line: int) -> None:
        begin, answers = began + rng.random() * length_s, []
        for stream in (line, line + num_lines):
            utterance = rng.randrange(len(utterances))
            call = _Call(system, stream, utterance, begin, pacing, measured, heard)
            answers += await call.speak(utterances[utterance])
            begin += length_s
        await asyncio.gather(*answers, return_exceptions=True)
        on_done()

    await asyncio.gather(_count_cores(measured, heard), *map(speak, range(num_lines)))
    return heard


async def _count_cores(measured: _Measured, heard: Heard) -> None:
    await _sleep_until(measured.begin)
    began, busy_before_s, own_before_s = time.perf_counter(), busy_s(), time.process_time()
    await _sleep_until(measured.end)
    elapsed_s = time.perf_counter() - began
    heard.busy_cores = (busy_s() - busy_before_s) / elapsed_s
    heard.own_cores = (time.process_time() - own_before_s) / elapsed_s


async def _sleep_until(time_s: float) -> None:
    await asyncio.sleep(max(0.0, time_s - time.perf_counter()))


@dataclass(slots=True)
class _Call:
    """One stream of a line.

    began: when it was due to.
    """

    system: StreamSystem
    stream: int
    utterance: int
    began: float
    pacing: Pacing
    measured: _Measured
    heard: Heard
    has_words: bool = False

    async def speak(self, samples: Samples) -> list[asyncio.Future[str]]:
        """Send the stream piece by piece, and return the answers to come; it ends where nothing counts any more."""
        answers = []
        num_samples = num_chunks = 0
        for number, (piece, is_last) in enumerate(_pieces(samples, self.pacing)):
            num_samples += len(piece)
            due = self.began + num_samples / SAMPLE_RATE_HZ
            is_cut = due >= self.measured.end
            await _sleep_until(due)
            if self.measured.holds(due):
                self.heard.lag_s.append(time.perf_counter() - due)
            num_due = self.pacing.chunks_of(num_samples)
            completes_chunk, num_chunks = num_due > num_chunks, num_due
            answer = self.system.send(self.stream, number, piece, is_last or is_cut)
            answer.add_done_callback(
                partial(self._note, due, completes_chunk, is_last and not is_cut)
            )
            answers.append(answer)
            if is_cut:
                break
        return answers

    def _note(
        self, due: float, completes_chunk: bool, is_last: bool, answer: asyncio.Future[str]
    ) -> None:
        heard = self.heard
        if answer.cancelled() or answer.exception() is not None:
            heard.errors.append(str(answer.exception()))
            return
        now = time.perf_counter()
        if completes_chunk and self.measured.holds(due):
            heard.chunk_s.append(now - due)
        if answer.result() and not self.has_words:
            self.has_words = True
            if self.measured.holds(self.began):
                heard.first_s.append(now - self.began)
        if is_last:
            heard.texts.append((self.utterance, answer.result()))
            if self.measured.holds(due):
                heard.final_s.append(now - due)


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
    own_cores: float


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
        heard.own_cores,
    )


def _percentiles(seconds: Sequence[float], *percents: float) -> list[float]:
    return [float(value) for value in np.percentile(seconds or [np.nan], percents)]
