"""The frames of Kaldi's filter bank: how many samples make how many.

The features themselves are a graph of every bundle (export/features.py). A frame depends on its own samples alone, so
the features of a stream's next chunk are those of its next samples: there is no state to keep.
"""

from __future__ import annotations

NUM_MELS = 80
"""What WeNet's recipes use."""

FRAME_SAMPLES, SHIFT_SAMPLES = 400, 160
"""25 ms and 10 ms at 16 kHz."""


def num_frames(num_samples: int) -> int:
    """Return how many frames so many samples at 16 kHz make: only whole ones, as Kaldi's `snip_edges` has it."""
    return max(0, (num_samples - FRAME_SAMPLES) // SHIFT_SAMPLES + 1)


def num_samples(num_frames: int) -> int:
    """Return how many samples so many frames need, of which there is one at least."""
    return (num_frames - 1) * SHIFT_SAMPLES + FRAME_SAMPLES
