"""What rooms, microphones, speakers and noise do to clean speech, drawn anew at every call.

It knows nothing of texts or models: samples in, samples out. Every draw comes from the generator
that is passed in, so the same seed gives the same samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import soxr
from numpy.random import Generator
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 16000
Samples = NDArray[np.float32]

SPEEDS = (0.88, 1.13)
"""Speed changes pitch and formants with it, as if on another speaker."""

MAX_SPECTRUM_SHIFT = 0.04
"""How far a vocal tract's length may move the mel axis (VTLP, Jaitly and Hinton 2013)."""


def distort(speech: Samples, other: Samples, random: Generator) -> Samples:
    """Put clean speech into a room, before a microphone, into noise.

    Args:
        speech: (samples,) float32 in [-1, 1] at 16 kHz, clean.
        other: speech of another utterance, used as babble.
        random: where every draw comes from.

    Returns:
        (samples,) float32 in [-1, 1], of another length than `speech`.
    """
    heard = change_speed(speech, random.uniform(*SPEEDS))
    heard = pad_with_silence(heard, random)
    if random.random() < 0.4:
        heard = reverberate(heard, random)
    if random.random() < 0.7:
        heard = colour(heard, random)
    if random.random() < 0.7:
        heard = add_noise(heard, make_noise(len(heard), other, random), random.uniform(8, 40))
    if random.random() < 0.2:
        heard = cut_high_frequencies(heard, random.choice([3400.0, 4000.0, 5500.0, 7000.0]))
    if random.random() < 0.05:
        heard = np.clip(heard, -0.4 * np.abs(heard).max(), 0.4 * np.abs(heard).max())
    return set_level(heard, random.uniform(-35, -3))


def change_speed(samples: Samples, factor: float) -> Samples:
    """Play `samples` `factor` times as fast, pitch included."""
    played: Samples = soxr.resample(samples, SAMPLE_RATE_HZ * factor, SAMPLE_RATE_HZ, quality="MQ")
    return played


def pad_with_silence(samples: Samples, random: Generator) -> Samples:
    """Add up to 0.3 s before and up to 0.4 s behind."""
    before, after = random.uniform(0, 0.3), random.uniform(0, 0.4)
    return np.pad(samples, (int(before * SAMPLE_RATE_HZ), int(after * SAMPLE_RATE_HZ)))


def reverberate(samples: Samples, random: Generator) -> Samples:
    """Convolve with a made-up room: the direct sound, then noise that dies away by 60 dB in 0.1 to 0.5 s."""
    decay_s = random.uniform(0.1, 0.5)
    times_s = np.arange(int(decay_s * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    tail = random.standard_normal(len(times_s), np.float32)
    tail *= (10 ** (-3 * times_s / decay_s)).astype(np.float32)
    tail[: int(random.uniform(0.001, 0.008) * SAMPLE_RATE_HZ)] = 0.0
    tail *= 10 ** (-random.uniform(0, 16) / 20) / np.sqrt(np.sum(tail**2))
    tail[0] = 1.0
    size = _fast_length(len(samples) + len(tail) - 1)
    heard = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)
    return np.asarray(heard[: len(samples)], np.float32)


def colour(samples: Samples, random: Generator) -> Samples:
    """Filter by a microphone's uneven curve: up to 6 dB at six points, less below 60 to 300 Hz."""
    points_db = random.uniform(-6, 6, size=6)
    lowest_hz = random.uniform(60, 300)

    def gain(hertz: NDArray[np.float32]) -> NDArray[np.float32]:
        curve_db = np.interp(hertz, [0, 300, 1000, 2500, 5000, 8000], points_db)
        rolled_db = 24 * np.minimum(np.log2(np.maximum(hertz, 1.0) / lowest_hz), 0.0)
        return np.asarray(10 ** ((curve_db + rolled_db) / 20), np.float32)

    return _filter(samples, gain)


def cut_high_frequencies(samples: Samples, highest_hz: float) -> Samples:
    """Drop what lies above `highest_hz`, as a telephone does."""
    return _filter(samples, lambda hertz: np.asarray(hertz <= highest_hz, np.float32))


def make_noise(num_samples: int, other: Samples, random: Generator) -> Samples:
    """Make noise: white to brown, with a mains hum at times, or another speaker's speech."""
    if random.random() < 0.15:
        return np.resize(np.roll(other, random.integers(len(other))), num_samples)
    slope = random.uniform(-1.2, 0.1)
    white = random.standard_normal(num_samples, np.float32)
    noise = _filter(white, lambda hertz: (np.maximum(hertz, 20.0) / 1000) ** slope)
    if random.random() < 0.2:
        times_s = np.arange(num_samples) / SAMPLE_RATE_HZ
        hum = np.sin(2 * np.pi * random.choice([50.0, 60.0]) * times_s)
        noise += (hum * (noise.std() * random.uniform(0.3, 1.5))).astype(np.float32)
    return noise


def add_noise(speech: Samples, noise: Samples, ratio_db: float) -> Samples:
    """Add `noise` so that the speech's power is `ratio_db` above the noise's."""
    power, noise_power = np.mean(speech**2), np.mean(noise**2)
    if noise_power == 0:
        return speech
    gain = np.sqrt(power / noise_power * 10 ** (-ratio_db / 10))
    return np.asarray(speech + noise * gain, np.float32)


def set_level(samples: Samples, peak_db: float) -> Samples:
    """Scale to a peak of `peak_db` below full scale, and round to 16 bits as a recording is."""
    peak = float(np.abs(samples).max(initial=1e-9))
    scaled = samples * (10 ** (peak_db / 20) / peak)
    return np.asarray(np.round(scaled * 32767) / 32768, np.float32)


def warp_mel_axis(features: NDArray[np.float32], random: Generator) -> NDArray[np.float32]:
    """Stretch the mel axis of (frames, mels) by up to 4 %, as a longer or shorter vocal tract does."""
    num_mels = features.shape[1]
    factor = random.uniform(1 - MAX_SPECTRUM_SHIFT, 1 + MAX_SPECTRUM_SHIFT)
    source = np.minimum(np.arange(num_mels) * factor, num_mels - 1.001)
    low = source.astype(np.int64)
    share = (source - low).astype(np.float32)
    warped: NDArray[np.float32] = features[:, low] * (1 - share) + features[:, low + 1] * share
    return warped


def mask_spectrum(features: NDArray[np.float32], random: Generator) -> NDArray[np.float32]:
    """Blank two bands of up to 8 mels and two spans of up to 8 frames (SpecAugment, Park et al. 2019).

    Masked places get the features' own mean: zero in log-mel would be a loud sound.
    """
    num_frames, num_mels = features.shape
    masked = features.copy()
    mean = features.mean()
    for _ in range(2):
        width = random.integers(0, 9)
        first = random.integers(0, num_mels - width)
        masked[:, first : first + width] = mean
        length = min(random.integers(0, 9), num_frames // 5)
        start = random.integers(0, num_frames - length)
        masked[start : start + length] = mean
    return masked


def _filter(
    samples: Samples, gain: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> Samples:
    """Multiply the spectrum by `gain`, a function of the frequencies in hertz."""
    size = _fast_length(len(samples))
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE_HZ).astype(np.float32)
    filtered = np.fft.irfft(np.fft.rfft(samples, size) * gain(frequencies), size)
    return np.asarray(filtered[: len(samples)], np.float32)


def _fast_length(length: int) -> int:
    """Return the least of 2^n, 3 · 2^n and 5 · 2^n that is not below `length`: numpy is slow on large primes."""
    return min(odd << max(0, -(-length // odd) - 1).bit_length() for odd in (1, 3, 5))
