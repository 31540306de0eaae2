#!/usr/bin/env python3
"""Measure word error rates of Whisper: our window of 30 s, our short one, and faster-whisper, on the same weights.

    .venv/bin/python scripts/bench_wer.py [--options beam_size=1]

Every clip of people in tests/data is heard in several versions, and LibriVox's also two and three joined. The table has
wrong words in a hundred, by version.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import soxr

from oasr_backend.allocator import prepare_heap
from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.benchmark.speech import read_clips
from oasr_backend.benchmark.systems import faster_whisper
from oasr_backend.config import read_options
from oasr_backend.cores import num_cores
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.whisper import WhisperConfig, WhisperRecognizer
from oasr_backend.models.whisper_folder import find_model
from oasr_backend.wer import fold, word_errors

DATA = Path(__file__).parents[1] / "tests" / "data"
FOLDERS = ("librivox", "cards", "commands")

Transcribe = Callable[[Samples], str]


@dataclass(frozen=True, slots=True)
class Clip:
    """Speech, and the words in it."""

    samples: Samples
    text: str


def main() -> None:
    options = parse_arguments()
    prepare_heap()
    named = dict(text.split("=", 1) for text in options.options)
    tests = versions([clip for folder in FOLDERS for clip in read(DATA / folder)])
    tests["joined"] = joined(read(DATA / "librivox"))
    systems = {
        "30 s": recognizer({**named, "short_window": "false"}),
        "short window": recognizer({**named, "short_window": "true"}),
        "faster-whisper": peer(named),
    }
    print(f"{'version':<14}{'words':>7}" + "".join(f"{name:>16}" for name in systems))
    wrong = dict.fromkeys(systems, 0)
    for version, clips in tests.items():
        counts = {name: errors(transcribe, clips) for name, transcribe in systems.items()}
        wrong = {name: wrong[name] + count for name, count in counts.items()}
        print_line(version, num_words(clips), counts)
    print_line("all", num_words([*chain(*tests.values())]), wrong)


def versions(clips: Sequence[Clip]) -> dict[str, list[Clip]]:
    """Return the clips as they are, and as they come from other rooms, voices and lines."""
    silence = np.zeros(SAMPLE_RATE_HZ, np.float32)
    changes: dict[str, Callable[[Samples], Samples]] = {
        "plain": lambda samples: samples,
        "noise 20 dB": lambda samples: noisy(samples, 20),
        "noise 10 dB": lambda samples: noisy(samples, 10),
        "slower": lambda samples: resampled(samples, 1 / 0.9),
        "faster": lambda samples: resampled(samples, 1 / 1.1),
        "telephone": lambda samples: resampled(resampled(samples, 0.5), 2),
        "quiet": lambda samples: samples * np.float32(0.03),
        "silence before": lambda samples: np.concatenate([silence, samples]),
        "silence after": lambda samples: np.concatenate([samples, silence]),
    }
    return {
        name: [Clip(change(clip.samples), clip.text) for clip in clips]
        for name, change in changes.items()
    }


def joined(clips: Sequence[Clip]) -> list[Clip]:
    """Return every two and every three neighbours as one, with 0.3 s between them."""
    pause = np.zeros(round(0.3 * SAMPLE_RATE_HZ), np.float32)
    groups = [clips[i : i + n] for n in (2, 3) for i in range(len(clips) - n + 1)]
    return [
        Clip(
            np.concatenate([part for clip in group for part in (clip.samples, pause)]),
            " ".join(clip.text for clip in group),
        )
        for group in groups
    ]


def noisy(samples: Samples, snr_db: float) -> Samples:
    noise = np.random.default_rng(len(samples)).normal(size=len(samples))
    level = np.sqrt(np.mean(samples**2)) * 10 ** (-snr_db / 20)
    return (samples + level * noise).astype(np.float32)


def resampled(samples: Samples, factor: float) -> Samples:
    """Return `samples` with `factor` times as many of them: pitch and pace change where they are played as before."""
    return np.asarray(soxr.resample(samples, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * factor), np.float32)


def recognizer(options: dict[str, str]) -> Transcribe:
    whisper = WhisperRecognizer(read_options(WhisperConfig, options))

    def transcribe(samples: Samples) -> str:
        piece = whisper.prepare(samples, TranscribeOptions())
        return whisper.transcribe([piece])[0].text if piece.has_speech else ""

    return transcribe


def peer(options: dict[str, str]) -> Transcribe:
    config = read_options(WhisperConfig, options)
    folder = str(find_model(config.model_dir))
    return faster_whisper(folder, num_cores(), config.beam_size, batch_size=0)


def errors(transcribe: Transcribe, clips: Sequence[Clip]) -> int:
    return sum(
        word_errors(fold(clip.text).split(), fold(transcribe(clip.samples)).split())
        for clip in clips
    )


def num_words(clips: Sequence[Clip]) -> int:
    return sum(len(fold(clip.text).split()) for clip in clips)


def print_line(version: str, words: int, wrong: dict[str, int]) -> None:
    cells = "".join(f"{100 * count / words:>14.2f} %" for count in wrong.values())
    print(f"{version:<14}{words:>7}{cells}", flush=True)


def read(folder: Path) -> list[Clip]:
    with (folder / "transcripts.tsv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    clips = read_clips([folder / name for name, _ in rows])
    return [Clip(samples, text) for samples, (_, text) in zip(clips, rows, strict=True)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--options", nargs="*", default=[], metavar="NAME=VALUE", help="of the model"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
