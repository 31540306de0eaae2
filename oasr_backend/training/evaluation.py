"""The demo model's word error rates: people's clips and synthetic voices that training never heard.

It reads a bundle as serving does, and knows nothing of training or torch.
"""

from __future__ import annotations

import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from oasr_backend.runtime.onnx import OnnxRuntime
from oasr_backend.training import augment
from oasr_backend.training.corpus import Corpus
from oasr_backend.training.examples import decode
from oasr_backend.wer import word_error_rate

SILENCE = 16000 // 4
"""Samples before and behind a clean line, as a microphone has them: the corpus is trimmed to the words."""

Waveform = NDArray[np.float32]
"""(samples,) float32 in [-1, 1] at 16 kHz."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How the encoder sees: `size` frames of 40 ms at a time and `left` chunks before; -1 for all."""

    size: int
    left: int

    def __str__(self) -> str:
        if self.size <= 0:
            return "full context"
        return f"chunks of {self.size}, {'all' if self.left < 0 else self.left} to the left"


CHUNKINGS = (Chunking(16, -1), Chunking(16, 4), Chunking(0, -1))


@dataclass(frozen=True, slots=True)
class Clips:
    """A test set: what is heard and what was said."""

    name: str
    waveforms: Sequence[Waveform]
    texts: Sequence[str]


class Recognizer:
    """A bundle's graph for whole utterances, masked as a stream would be, and CTC's best path."""

    def __init__(self, bundle: Path) -> None:
        self._runtime = OnnxRuntime(bundle, num_threads=1)

    def transcribe(self, waveform: Waveform, chunking: Chunking) -> str:
        """Return the text of one clip."""
        logs, _ = self._runtime.encode([waveform], chunking.size, chunking.left)
        return decode(logs[0].argmax(axis=-1).tolist())


def human_clips(data: Path) -> Clips:
    """Read the seven clips of people in tests/data that lie in the model's domain."""
    waveforms, texts = [], []
    for folder in ("cards", "commands"):
        for line in (data / folder / "transcripts.tsv").read_text().splitlines():
            name, text = line.split("\t")
            waveforms.append(_read_wave(data / folder / name))
            texts.append(text)
    return Clips("people", waveforms, texts)


def held_out_voices(corpus: Corpus, distorted: bool) -> Clips:
    """Return the held-out corpus clean between silence, or each line in a room and noise drawn from its number."""
    waveforms = [corpus.waveform(index) for index in range(len(corpus))]
    if not distorted:
        waveforms = [np.pad(waveform, SILENCE) for waveform in waveforms]
    else:
        waveforms = [
            augment.distort(waveform, waveforms[index - 1], default_rng((7, index)))
            for index, waveform in enumerate(waveforms)
        ]
    name = "held-out voices, distorted" if distorted else "held-out voices"
    return Clips(name, waveforms, corpus.texts)


def report(recognizer: Recognizer, tests: Sequence[Clips]) -> Iterator[str]:
    """Yield a line a test and chunking: its word error rate."""
    for test in tests:
        num_words = sum(len(text.split()) for text in test.texts)
        for chunking in CHUNKINGS:
            heard = [recognizer.transcribe(waveform, chunking) for waveform in test.waveforms]
            rate = word_error_rate(test.texts, heard)
            yield f"{test.name} ({num_words} words), {chunking}: {100 * rate:.1f} %"


def _read_wave(path: Path) -> Waveform:
    with wave.open(str(path)) as sound:
        assert sound.getframerate() == 16000, f"{path} is not at 16 kHz"
        pcm = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return pcm.astype(np.float32) / np.float32(32768.0)
