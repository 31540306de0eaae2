"""Kaldi's log-mel filter bank as a graph of a bundle, so that it runs wherever the model does.

It knows nothing of models: means and variances are theirs.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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

HALF_SAMPLES = FRAME_SAMPLES // 2
BLOCK = math.gcd(HALF_SAMPLES, SHIFT_SAMPLES)
"""Halves of frames begin and end at multiples of so many samples, so that they are put together from whole blocks."""


class FbankGraph(Graph):
    """Samples to features, as Kaldi's `fbank` makes them without dither and energy.

    From each frame of 25 ms its mean is taken, the rest is pre-emphasized by 0.97, and Povey's window is laid over it;
    then the power spectrum in 512 bins, triangles equally wide in mel from 20 Hz to 8 kHz, and the natural logarithm.
    A transform as a product of matrices takes less than a fast one after passes over all frames, of which each waits
    for memory. A spectrum's power does not depend on where a frame begins: counted from its middle, about which the
    window is even, the sum of its halves makes the real parts and their difference the imaginary ones.
    """

    cosines: Tensor
    sines: Tensor
    triangles: Tensor

    inputs: ClassVar[Axes] = {"samples": ("batch", "samples")}
    outputs: ClassVar[Axes] = {"features": ("batch", "frames", None)}

    def __init__(self, num_mels: int) -> None:
        super().__init__()
        angles = 2 * np.pi * np.outer(np.arange(HALF_SAMPLES) + 0.5, BINS) / FFT_SIZE
        window = FULL_SCALE * _povey_window()[HALF_SAMPLES:, None]
        self.register_buffer("cosines", _tensor(window * np.cos(angles)))
        self.register_buffer("sines", _tensor(window * np.sin(angles)))
        self.register_buffer("triangles", _tensor(_triangles(num_mels)))

    def forward(self, samples: Tensor) -> Tensor:
        """Return (batch, frames, mels) float32 of (batch, samples) in ±1 at 16 kHz, of which there are 400 at least."""
        # A frame's own mean is taken below, so an offset makes no difference, but for rounding.
        centred = samples - samples.mean(dim=1, keepdim=True)
        # Where a frame begins its window is 0: what comes before it does not matter.
        before = torch.cat([centred[:, :1], centred[:, :-1]], dim=1)
        left, right = _halves(centred - PREEMPHASIS * before)
        means = (1 - PREEMPHASIS) * _means(centred)
        real = (right + left - 2 * means) @ self.cosines
        imaginary = (right - left) @ self.sines
        power = real * real + imaginary * imaginary
        return torch.log(torch.clamp(power @ self.triangles, min=FLOOR))


def _halves(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves of frames of (batch, samples), each from the middle outwards: (batch, frames, 200)."""
    blocks = _blocks(samples)
    backwards = torch.flip(blocks, [2])
    step, half = SHIFT_SAMPLES // BLOCK, HALF_SAMPLES // BLOCK
    last = blocks.shape[1] - 2 * half + 1
    left = [backwards[:, first : first + last : step] for first in reversed(range(half))]
    right = [blocks[:, first : first + last : step] for first in range(half, 2 * half)]
    return torch.cat(left, dim=2), torch.cat(right, dim=2)


def _means(samples: Tensor) -> Tensor:
    """Return the mean of each frame of (batch, samples): (batch, frames, 1)."""
    means = _blocks(samples).mean(dim=2)[:, None]
    step, length = SHIFT_SAMPLES // BLOCK, FRAME_SAMPLES // BLOCK
    return functional.avg_pool1d(means, length, step).transpose(1, 2)


def _blocks(samples: Tensor) -> Tensor:
    """Return the blocks of all frames of (batch, samples): (batch, blocks, 40)."""
    num_shifts = (samples.shape[1] - FRAME_SAMPLES) // SHIFT_SAMPLES
    num_samples = num_shifts * SHIFT_SAMPLES + FRAME_SAMPLES
    return samples[:, :num_samples].reshape(samples.shape[0], -1, BLOCK)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))


def _povey_window() -> Any:
    position = np.arange(FRAME_SAMPLES)
    return (0.5 - 0.5 * np.cos(2 * np.pi * position / (FRAME_SAMPLES - 1))) ** 0.85


def _triangles(num_mels: int) -> Any:
    """Return what makes filter energies of the power of the bins: (bins, num_mels)."""
    edges = np.linspace(_mel(LOWEST_HZ), _mel(SAMPLE_RATE_HZ / 2), num_mels + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    places = _mel(BINS * SAMPLE_RATE_HZ / FFT_SIZE)[:, None]
    return np.maximum(
        np.minimum((places - low) / (centre - low), (high - places) / (high - centre)), 0
    )


def _mel(hertz: Any) -> Any:
    return 1127 * np.log1p(np.asarray(hertz) / 700)
