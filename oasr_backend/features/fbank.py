"""Kaldi's log-mel filter bank, whole or piece by piece, through kaldi-native-fbank.

It knows nothing of models: means and variances are theirs.
"""

from __future__ import annotations

import kaldi_native_fbank as knf
import numpy as np
from numpy.typing import NDArray

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples

NUM_MELS = 80
"""What WeNet's recipes use."""

FRAME_LENGTH_MS, FRAME_SHIFT_MS = 25.0, 10.0

FULL_SCALE = np.float32(32768)
"""Kaldi and WeNet count samples in 16-bit integers; ours are in ±1."""

Fbank = NDArray[np.float32]
"""(frames, mels) float32: natural logarithms of filter energies, a frame every 10 ms."""


class StreamingFbank:
    """One stream's features: each frame is given once, when the last of its samples is there.

    As in Kaldi with `snip_edges`, a frame holds 25 ms of samples whole, so that n samples give (n - 400) // 160 + 1
    frames, and fewer than 400 none.
    """

    def __init__(self, num_mels: int = NUM_MELS) -> None:
        options = knf.FbankOptions()
        options.frame_opts.samp_freq = SAMPLE_RATE_HZ
        options.frame_opts.frame_length_ms = FRAME_LENGTH_MS
        options.frame_opts.frame_shift_ms = FRAME_SHIFT_MS
        options.frame_opts.dither = 0.0
        options.frame_opts.snip_edges = True
        options.mel_opts.num_bins = num_mels
        self._num_mels = num_mels
        self._fbank = knf.OnlineFbank(options)
        self._num_given = 0

    def accept(self, samples: Samples) -> Fbank:
        """Take the next (samples,) float32 in ±1 at 16 kHz; return the frames that they complete."""
        self._fbank.accept_waveform(SAMPLE_RATE_HZ, samples * FULL_SCALE)
        start, self._num_given = self._num_given, self._fbank.num_frames_ready
        num_new = self._num_given - start
        frames = np.empty((num_new, self._num_mels), np.float32)
        for row in range(num_new):
            frames[row] = self._fbank.get_frame(start + row)
        self._fbank.pop(num_new)
        return frames


def fbank(samples: Samples, num_mels: int = NUM_MELS) -> Fbank:
    """Return the features of a whole utterance: (samples,) float32 in ±1 at 16 kHz."""
    return StreamingFbank(num_mels).accept(samples)
