"""The synthetic corpus: planned line by line from a seed, spoken once, kept in one folder.

It knows nothing of features or models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from oasr_backend.training import texts, voices
from oasr_backend.training.synthesis import SAMPLE_RATE_HZ, synthesize
from oasr_backend.training.voices import Delivery, Voice

MIN_SECONDS_PER_TOKEN = 0.056
"""A faster line does not teach: CTC writes at most one letter for each encoder frame of 40 ms, and needs another
frame between two that are the same."""

MAX_SECONDS = 12.0
"""A longer line (slow voice, many pauses) is left out: it would cost more than it teaches."""


@dataclass(frozen=True, slots=True)
class Line:
    """One utterance to be spoken."""

    text: str
    voice: Voice
    delivery: Delivery
    seed: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """Spoken lines: `samples` holds all of them end to end, int16 at 16 kHz."""

    samples: NDArray[np.int16]
    starts: NDArray[np.int64]
    texts: Sequence[str]
    voices: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def waveform(self, index: int) -> NDArray[np.float32]:
        """Return line `index` as (samples,) float32 in [-1, 1]."""
        pcm = self.samples[self.starts[index] : self.starts[index + 1]]
        return pcm.astype(np.float32) / np.float32(32768.0)

    def durations_s(self) -> NDArray[np.float64]:
        """Return the length of every line in seconds."""
        return np.diff(self.starts) / SAMPLE_RATE_HZ

    def spellable(self) -> list[int]:
        """Return the lines that are spoken slowly enough to be spelled."""
        pairs = zip(self.texts, self.durations_s(), strict=True)
        return [
            index
            for index, (text, duration_s) in enumerate(pairs)
            if duration_s >= MIN_SECONDS_PER_TOKEN * _num_tokens(text)
        ]


def training_plan(num_lines: int, seed: int) -> list[Line]:
    """Plan the lines to train on; the same arguments give the same plan."""
    randoms = [Random(f"train {seed} {number}") for number in range(num_lines)]
    return [_line(voices.training_voice(random), texts.KINDS, random) for random in randoms]


def held_out_plan(num_lines: int, seed: int) -> list[Line]:
    """Plan the test: sentences of the domain by voices that `training_plan` never draws."""
    randoms = [Random(f"held out {seed} {number}") for number in range(num_lines)]
    return [_line(voices.held_out_voice(random), texts.DOMAIN, random) for random in randoms]


def prepare(folder: Path, plan: Sequence[Line], num_processes: int) -> Corpus:
    """Speak `plan` into `folder`, unless the same plan lies there already, and open it."""
    described = json.dumps([asdict(line) for line in plan])
    stamp = folder / "plan.json"
    if not stamp.exists() or stamp.read_text() != described:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _speak_all(folder, plan, num_processes)
        stamp.write_text(described)  # last: its presence says that the rest is whole
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Open what `prepare` left in `folder`. The samples stay on disk until they are read."""
    lines = json.loads((folder / "lines.json").read_text())
    return Corpus(
        np.load(folder / "samples.npy", mmap_mode="r"),
        np.load(folder / "starts.npy"),
        [line["text"] for line in lines],
        [line["voice"] for line in lines],
    )


def _num_tokens(text: str) -> int:
    return len(text) + sum(one == next_ for one, next_ in pairwise(text))


def _line(voice: Voice, kinds: Sequence[texts.Kind], random: Random) -> Line:
    how = voices.delivery(voice, random)
    return Line(texts.sentence(random, kinds), voice, how, random.randrange(2**31))


def _speak_all(folder: Path, plan: Sequence[Line], num_processes: int) -> None:
    with ProcessPoolExecutor(num_processes) as pool:
        spoken = list(pool.map(_speak, plan, chunksize=32))
    limit = int(MAX_SECONDS * SAMPLE_RATE_HZ)
    kept = [(line, pcm) for line, pcm in zip(plan, spoken, strict=True) if len(pcm) <= limit]
    lengths = [len(pcm) for _, pcm in kept]
    np.save(folder / "samples.npy", np.concatenate([pcm for _, pcm in kept]))
    np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    described = [{"text": line.text, "voice": str(line.voice)} for line, _ in kept]
    (folder / "lines.json").write_text(json.dumps(described))


def _speak(line: Line) -> NDArray[np.int16]:
    samples = synthesize(line.text, line.voice, line.delivery, line.seed)
    return np.asarray(np.round(samples * 32767.0), np.int16)
