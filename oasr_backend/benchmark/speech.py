"""Utterances of any length, cut and joined from clips of real speech. It knows nothing of who hears them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.errors import ConfigError
from oasr_backend.simulation.workload import Length

CUT_S = 0.01
"""Clips are faded in and out that long where they are cut, so that no click is heard."""


def read_clips(paths: Sequence[Path]) -> list[Samples]:
    """Read 16 kHz clips, mono, as float32 in ±1; ConfigError for what is none."""
    clips = []
    for path in paths:
        try:
            samples, rate_hz = soundfile.read(path, dtype="float32")
        except soundfile.SoundFileError as error:
            raise ConfigError(
                f"{path} cannot be read as audio ({error}): use a WAV file"
            ) from error
        if rate_hz != SAMPLE_RATE_HZ or samples.ndim != 1:
            num_channels = 1 if samples.ndim == 1 else samples.shape[1]
            raise ConfigError(
                f"{path} has {num_channels} channels of {rate_hz} Hz: use one of {SAMPLE_RATE_HZ} Hz"
            )
        clips.append(samples)
    return clips


def utterance(clips: Sequence[Samples], num_samples: int, rng: random.Random) -> Samples:
    """Return (num_samples,) of clips in random order, one after the other, the last one cut."""
    parts: list[Samples] = []
    missing = num_samples
    while missing > 0:
        clip = clips[rng.randrange(len(clips))][:missing]
        parts.append(_faded(clip))
        missing -= len(clip)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def pool(clips: Sequence[Samples], length: Length, num_utterances: int, seed: int) -> list[Samples]:
    """Return utterances whose lengths are drawn from a distribution; requests then draw from them.

    So every text is known from a run without load, though thousands of requests are sent.
    """
    rng = random.Random(f"pool {seed}")
    return [
        utterance(clips, round(length(rng) * SAMPLE_RATE_HZ), rng) for _ in range(num_utterances)
    ]


def _faded(clip: Samples) -> Samples:
    faded = clip.copy()
    width = min(round(CUT_S * SAMPLE_RATE_HZ), len(clip) // 2)
    ramp = np.linspace(0, 1, width, dtype=np.float32)
    faded[:width] *= ramp
    faded[len(clip) - width :] *= ramp[::-1]
    return faded
