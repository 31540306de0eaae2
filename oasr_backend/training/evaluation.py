"""The demo model's word error rates: people's clips and synthetic voices that training never heard.

It knows nothing of training.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray

from oasr_backend.export.conformer import ConformerCtc
from oasr_backend.training import augment
from oasr_backend.training.corpus import Corpus
from oasr_backend.training.examples import decode
from oasr_backend.training.fbank import fbank
from oasr_backend.wer import word_error_rate


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
    """Clips with what is said in them."""

    name: str
    waveforms: Sequence[NDArray[np.float32]]
    texts: Sequence[str]


def human_clips(data: Path) -> Clips:
    """Read the seven clips of people in tests/data that lie in the model's domain."""
    clips, texts = [], []
    for folder in ("cards", "commands"):
        for line in (data / folder / "transcripts.tsv").read_text().splitlines():
            name, text = line.split("\t")
            clips.append(_read_wave(data / folder / name))
            texts.append(text)
    return Clips("people", clips, texts)


def held_out_voices(corpus: Corpus, distorted: bool) -> Clips:
    """Return the held-out corpus, clean, or each line in a room and noise drawn from its number."""
    clips = [corpus.waveform(index) for index in range(len(corpus))]
    if distorted:
        clips = [
            augment.distort(clip, clips[index - 1], default_rng((7, index)))
            for index, clip in enumerate(clips)
        ]
    name = "held-out voices, distorted" if distorted else "held-out voices"
    return Clips(name, clips, corpus.texts)


def transcribe(
    model: ConformerCtc, clips: Sequence[NDArray[np.float32]], chunking: Chunking
) -> list[str]:
    """Return each clip's text by CTC's best path, (samples,) float32 at 16 kHz in."""
    model.eval()
    texts = []
    with torch.inference_mode():
        for clip in clips:
            features = torch.from_numpy(fbank(clip)).unsqueeze(0)
            lengths = torch.tensor([features.shape[1]])
            logs, _ = model(features, lengths, chunking.size, chunking.left)
            texts.append(decode(logs[0].argmax(dim=-1).tolist()))
    return texts


def report(model: ConformerCtc, tests: Sequence[Clips]) -> list[str]:
    """Return a line a test and chunking: its word error rate."""
    lines = []
    for test in tests:
        num_words = sum(len(text.split()) for text in test.texts)
        for chunking in CHUNKINGS:
            rate = word_error_rate(test.texts, transcribe(model, test.waveforms, chunking))
            lines.append(f"{test.name} ({num_words} words), {chunking}: {100 * rate:.1f} %")
    return lines


def _read_wave(path: Path) -> NDArray[np.float32]:
    with wave.open(str(path)) as sound:
        assert sound.getframerate() == 16000, f"{path} is not at 16 kHz"
        pcm = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return pcm.astype(np.float32) / np.float32(32768.0)
