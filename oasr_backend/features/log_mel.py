"""Whisper's log-mel spectrogram, at the cost of the clip instead of the cost of Whisper's 30 s window.

It knows nothing of models: the features are those of a clip followed by silence up to the window, but only the
frames that the clip touches are computed, and `padded` adds the rest, which all hold one value.

The formula is that of openai/whisper `audio.py`: a periodic Hann window, the power spectrum, Slaney's mel filters
(those of librosa), log10 clamped at 1e-10 and at 8 below the loudest, then (x + 4) / 4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples

NUM_FFT = 400
HOP_SAMPLES = 160
WINDOW_FRAMES = 3_000
WINDOW_SAMPLES = WINDOW_FRAMES * HOP_SAMPLES
"""30 s, what Whisper was trained on."""

REACH = NUM_FFT // 2
"""A frame is centred on its first sample and reaches this many samples to either side."""

FLOOR_POWER = 1e-10
DYNAMIC_RANGE = 8.0
"""In decades of power: nothing is farther than that below the loudest."""

Features = NDArray[np.float32]


def log_mel(samples: Samples, num_mels: int = 80) -> Features:
    """Return the frames that the clip touches.

    samples: (samples,) float32 at 16 kHz, at most 480,000.
    num_mels: 80, or 128 for the large-v3 models.

    Returns (mels, frames) float32: equal to the first frames of the spectrogram of the clip zero-padded to 30 s.
    The frames beyond them all hold `padding_value`.
    """
    assert len(samples) <= WINDOW_SAMPLES, "a clip is at most one window"
    num_frames = frames_touched(len(samples))
    if num_frames == 0:
        return np.zeros((num_mels, 0), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(_centred(samples, num_frames), NUM_FFT)[
        ::HOP_SAMPLES
    ]
    spectrum = np.fft.rfft(frames * _hann_window(), axis=1).astype(np.complex64)
    power = spectrum.real**2 + spectrum.imag**2
    log_power: Features = np.log10(
        np.maximum(_mel_filters(num_mels) @ power.T, np.float32(FLOOR_POWER))
    )
    floored = np.maximum(log_power, log_power.max() - DYNAMIC_RANGE)
    return np.asarray((floored + 4.0) / 4.0, dtype=np.float32)


def frames_touched(num_samples: int) -> int:
    """Return how many frames, from the first one on, hold any sample of a clip of `num_samples`."""
    if num_samples == 0:
        return 0
    return min(-(-(num_samples + REACH) // HOP_SAMPLES), WINDOW_FRAMES)


def padding_value(features: Features) -> float:
    """Return what a frame of silence after the clip holds, given the clip's `log_mel` (mels, frames)."""
    floor = (np.log10(FLOOR_POWER) + 4.0) / 4.0
    if features.size == 0:
        return float(floor)
    return max(float(floor), float(features.max()) - DYNAMIC_RANGE / 4.0)


def padded(features: Features, num_frames: int = WINDOW_FRAMES) -> Features:
    """Return `log_mel`'s (mels, frames) as (mels, num_frames): the clip followed by silence, or cut off."""
    result = np.full((len(features), num_frames), padding_value(features), np.float32)
    kept = min(features.shape[1], num_frames)
    result[:, :kept] = features[:, :kept]
    return result


def _centred(samples: Samples, num_frames: int) -> Samples:
    """Lay the clip out so that frame k starts at 160 k: mirrored at the ends of the 30 s, zeros after the clip."""
    result = np.zeros((num_frames - 1) * HOP_SAMPLES + NUM_FFT, np.float32)
    kept = samples[: len(result) - REACH]
    result[REACH : REACH + len(kept)] = kept
    mirrored = samples[1 : REACH + 1]
    result[REACH - len(mirrored) : REACH] = mirrored[::-1]
    beyond = len(result) - REACH - WINDOW_SAMPLES
    if beyond > 0:
        end = REACH + WINDOW_SAMPLES
        result[end:] = result[end - 1 - beyond : end - 1][::-1]
    return result


@lru_cache(maxsize=1)
def _hann_window() -> Samples:
    return np.hanning(NUM_FFT + 1)[:-1].astype(np.float32)


@lru_cache(maxsize=4)
def _mel_filters(num_mels: int) -> NDArray[np.float32]:
    """Return (mels, 201): triangles of equal area between neighbours on Slaney's mel scale up to 8 kHz."""
    bins_hz = np.fft.rfftfreq(NUM_FFT, 1 / SAMPLE_RATE_HZ)
    edges_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(SAMPLE_RATE_HZ / 2), num_mels + 2))
    low, centre, high = (edges_hz[i : i + num_mels, None] for i in range(3))
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * 2.0 / (high - low)).astype(np.float32)


# Slaney's scale (Auditory Toolbox, 1998): 3 mels per 200 Hz up to 1 kHz, then 27 mels per factor of 6.4.
_LINEAR_MELS = 15.0
_MELS_PER_HZ = 3.0 / 200.0
_LOG_STEP = np.log(6.4) / 27.0


def _hz_to_mel(frequency_hz: float) -> float:
    return float(_LINEAR_MELS + np.log(frequency_hz / 1000.0) / _LOG_STEP)


def _mel_to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = 1000.0 * np.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    return np.where(mels < _LINEAR_MELS, mels / _MELS_PER_HZ, logarithmic)
