"""Kaldi's log-mel filter bank as WeNet trains on it. It knows nothing of models."""

from __future__ import annotations

import kaldi_native_fbank as knf
import numpy as np
from numpy.typing import NDArray

NUM_MELS = 80
FRAMES_PER_SECOND = 100


def fbank(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the features of speech: 25 ms windows every 10 ms, no dither, snipped edges.

    Args:
        samples: (samples,) float32 in [-1, 1] at 16 kHz. They are scaled by 32768 first: Kaldi and
            WeNet compute on the range of 16-bit integers.

    Returns:
        (frames, 80) float32, natural logarithms.
    """
    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = NUM_MELS
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(16000, samples * np.float32(32768.0))
    computer.input_finished()
    frames = [computer.get_frame(index) for index in range(computer.num_frames_ready)]
    return np.stack(frames) if frames else np.zeros((0, NUM_MELS), np.float32)
