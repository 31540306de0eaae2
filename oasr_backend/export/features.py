"""Kaldi's log-mel filter bank as a graph of a bundle, so that it runs wherever the model does.

It knows nothing of models: means and variances are theirs.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from oasr_backend.audio import SAMPLE_RATE_HZ
from oasr_backend.export.graphs import Axes, Graph
from oasr_backend.features.fbank import FRAME_SAMPLES, SHIFT_SAMPLES

FULL_SCALE = 32768
"""Kaldi and WeNet count samples in 16-bit integers; ours are in ±1."""

PREEMPHASIS = 0.97
FFT_SIZE = 512
BINS = np.arange(1, FFT_SIZE // 2)
"""Those that lie in a triangle: neither 0 Hz nor 8 kHz."""

LOWEST_HZ = 20.0
FLOOR = float(np.finfo(np.float32).eps)

BLOCK = math.gcd(FRAME_SAMPLES, SHIFT_SAMPLES)
"""Frames begin and end at multiples of so many samples, so that they are put together from whole blocks."""


class FbankGraph(Graph):
    """Samples to features, as Kaldi's `fbank` makes them without dither and energy.

    From each frame of 25 ms its mean is taken, the rest is pre-emphasized by 0.97, and Povey's window is laid over it;
    then the power spectrum in 512 bins, triangles equally wide in mel from 20 Hz to 8 kHz, and the natural logarithm.
    All up to the spectrum is linear, so that one product of matrices does it: that takes less than a fast transform
    after passes over all frames, of which each waits for memory.
    """

    spectrum: Tensor
    triangles: Tensor

    inputs: ClassVar[Axes] = {"samples": ("batch", "samples")}
    outputs: ClassVar[Axes] = {"features": ("batch", "frames", None)}

    def __init__(self, num_mels: int) -> None:
        super().__init__()
        self.register_buffer("spectrum", _tensor(_spectrum()))
        self.register_buffer("triangles", _tensor(_triangles(num_mels)))

    def forward(self, samples: Tensor) -> Tensor:
        """Return (batch, frames, mels) float32 of (batch, samples) in ±1 at 16 kHz, of which there are 400 at least."""
        # A frame's own mean is taken below, so an offset makes no difference, but for rounding.
        centred = samples - samples.mean(dim=1, keepdim=True)
        squares = (_frames(centred) @ self.spectrum).square()
        return torch.log(torch.clamp(squares @ self.triangles, min=FLOOR))


def _frames(samples: Tensor) -> Tensor:
    """Return (batch, frames, 400) of (batch, samples)."""
    num_frames = (samples.shape[1] - FRAME_SAMPLES) // SHIFT_SAMPLES + 1
    step, length = SHIFT_SAMPLES // BLOCK, FRAME_SAMPLES // BLOCK
    num_blocks = (num_frames - 1) * step + length
    blocks = samples[:, : num_blocks * BLOCK].reshape(samples.shape[0], -1, BLOCK)
    last = (num_frames - 1) * step + 1
    return torch.cat([blocks[:, first : first + last : step] for first in range(length)], dim=2)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))


def _povey_window() -> Any:
    position = np.arange(FRAME_SAMPLES)
    return (0.5 - 0.5 * np.cos(2 * np.pi * position / (FRAME_SAMPLES - 1))) ** 0.85


def _spectrum() -> Any:
    """Return what makes real and imaginary parts of the bins of a frame of samples in ±1: (400, 2 * bins)."""
    frame = np.eye(FRAME_SAMPLES) * FULL_SCALE
    frame -= frame.mean(axis=1, keepdims=True)
    before = np.concatenate([frame[:, :1], frame[:, :-1]], axis=1)
    windowed = (frame - PREEMPHASIS * before) * _povey_window()
    angles = 2 * np.pi * np.outer(np.arange(FRAME_SAMPLES), BINS) / FFT_SIZE
    return windowed @ np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _triangles(num_mels: int) -> Any:
    """Return what makes filter energies of the squared parts of the bins: (2 * bins, num_mels)."""
    bins = np.concatenate([BINS, BINS])
    edges = np.linspace(_mel(LOWEST_HZ), _mel(SAMPLE_RATE_HZ / 2), num_mels + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    places = _mel(bins * SAMPLE_RATE_HZ / FFT_SIZE)[:, None]
    return np.maximum(
        np.minimum((places - low) / (centre - low), (high - places) / (high - centre)), 0
    )


def _mel(hertz: Any) -> Any:
    return 1127 * np.log1p(np.asarray(hertz) / 700)
