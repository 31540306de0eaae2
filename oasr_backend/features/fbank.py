"""Kaldi's log-mel filter bank of a batch of waveforms.

A frame depends on its own samples alone, so the features of a stream's next chunk are those of its next samples: there
is no state to keep. It knows nothing of models: means and variances are theirs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples

NUM_MELS = 80
"""What WeNet's recipes use."""

FRAME_LENGTH_MS, FRAME_SHIFT_MS = 25.0, 10.0
FRAME_SAMPLES, SHIFT_SAMPLES = 400, 160

FULL_SCALE = np.float32(32768)
"""Kaldi and WeNet count samples in 16-bit integers; ours are in ±1."""

PREEMPHASIS = 0.97
FFT_SIZE = 512
HALF_SIZE = FFT_SIZE // 2
EVEN_BINS, ODD_BINS = np.arange(2, HALF_SIZE, 2), np.arange(1, HALF_SIZE, 2)
"""Those that lie in a triangle: neither 0 Hz nor 8 kHz."""

LOWEST_HZ = 20.0
FLOOR = np.finfo(np.float32).eps

Fbank = NDArray[np.float32]
"""(frames, mels) float32: natural logarithms of filter energies, a frame every 10 ms."""


def num_frames(num_samples: int) -> int:
    """Return how many frames so many samples at 16 kHz make: only whole ones, as Kaldi's `snip_edges` has it."""
    return max(0, (num_samples - FRAME_SAMPLES) // SHIFT_SAMPLES + 1)


def num_samples(num_frames: int) -> int:
    """Return how many samples so many frames need, of which there is one at least."""
    return (num_frames - 1) * SHIFT_SAMPLES + FRAME_SAMPLES


def fbank(samples: Samples, num_mels: int = NUM_MELS) -> NDArray[np.float32]:
    """Return the features of each of a batch of waveforms.

    Kaldi's `fbank` without dither and energy: from each frame of 25 ms its mean is taken, the rest is pre-emphasized by
    0.97, and Povey's window is laid over it; then the power spectrum in 512 bins, triangles equally wide in mel from
    20 Hz to 8 kHz, and the natural logarithm. The Fourier transform is one step of the fast one and two products of
    matrices: for many frames at once that takes a third of the time.

    Args:
        samples: (..., samples) float32 in ±1 at 16 kHz.
        num_mels: filters.

    Returns:
        (..., frames, num_mels) float32; of speech within 1e-3 of kaldi-native-fbank.
    """
    shape = (*samples.shape[:-1], num_frames(samples.shape[-1]))
    if not np.prod(shape):
        return np.empty((*shape, num_mels), np.float32)
    windowed = _windowed_frames(samples).reshape(-1, FRAME_SAMPLES)
    spectrum = np.concatenate(
        [part @ waves for part, waves in zip(_halves(windowed), _fourier_matrices(), strict=True)],
        axis=1,
    )
    energies = np.square(spectrum, out=spectrum) @ _mel_matrix(num_mels)
    np.maximum(energies, FLOOR, out=energies)
    features: NDArray[np.float32] = np.log(energies, out=energies)
    return features.reshape(*shape, num_mels)


def _windowed_frames(samples: Samples) -> NDArray[np.float32]:
    """Return (..., frames, 400): what the Fourier transform is taken of."""
    # A frame's own mean is taken below, so an offset makes no difference, but for rounding.
    scaled = (samples - samples.mean(axis=-1, keepdims=True)) * FULL_SCALE
    emphasized = scaled[..., 1:] - np.float32(PREEMPHASIS) * scaled[..., :-1]
    means = _windows(scaled, FRAME_SAMPLES).mean(axis=-1, keepdims=True)
    means *= np.float32(1 - PREEMPHASIS)
    frames = np.zeros((*means.shape[:-1], FRAME_SAMPLES), np.float32)
    # Povey's window is 0 at the first sample: what is before the frame is never heard.
    np.subtract(_windows(emphasized, FRAME_SAMPLES - 1), means, out=frames[..., 1:])
    frames *= _povey_window()
    return frames


def _windows(samples: Samples, length: int) -> NDArray[np.float32]:
    """Return (..., frames, length): a view of every frame's samples."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, length, axis=-1)
    view: NDArray[np.float32] = windows[..., ::SHIFT_SAMPLES, :]
    return view


def _halves(frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what the even and the odd bins are made of, (frames, 256) each: decimation in frequency."""
    num_beyond = FRAME_SAMPLES - HALF_SIZE
    even = frames[:, :HALF_SIZE].copy()
    odd = frames[:, :HALF_SIZE].copy()
    even[:, :num_beyond] += frames[:, HALF_SIZE:]
    odd[:, :num_beyond] -= frames[:, HALF_SIZE:]
    return even, odd


@cache
def _povey_window() -> NDArray[np.float32]:
    position = np.arange(FRAME_SAMPLES)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * position / (FRAME_SAMPLES - 1))
    return np.asarray(hann**0.85, np.float32)


@cache
def _fourier_matrices() -> tuple[NDArray[np.float32], ...]:
    """Return what makes real and imaginary parts of `EVEN_BINS` and of `ODD_BINS`: (256, 2 * bins) each."""
    matrices = []
    for bins in (EVEN_BINS, ODD_BINS):
        angles = 2 * np.pi * np.outer(np.arange(HALF_SIZE), bins) / FFT_SIZE
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        matrices.append(waves.astype(np.float32))
    return tuple(matrices)


@cache
def _mel_matrix(num_mels: int) -> NDArray[np.float32]:
    """Return what makes filter energies of the squared parts, in the order of `_fourier_matrices`: (510, num_mels)."""
    bins = np.concatenate([EVEN_BINS, EVEN_BINS, ODD_BINS, ODD_BINS])
    edges = np.linspace(_mel(LOWEST_HZ), _mel(SAMPLE_RATE_HZ / 2), num_mels + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    places = _mel(bins * SAMPLE_RATE_HZ / FFT_SIZE)[:, None]
    triangles = np.minimum((places - low) / (centre - low), (high - places) / (high - centre))
    matrix: NDArray[np.float32] = np.maximum(triangles, 0).astype(np.float32)
    return matrix


def _mel(hertz: Any) -> Any:
    return 1127 * np.log1p(np.asarray(hertz) / 700)
