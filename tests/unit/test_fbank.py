"""Kaldi's filter bank: against its definition in numpy, and in pieces of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasr_backend.features.fbank import StreamingFbank, fbank


def samples(num_samples, seed=0):
    rng = np.random.default_rng(seed)
    time_s = np.arange(num_samples) / 16000
    tone = 0.3 * np.sin(2 * np.pi * (200 + 900 * time_s) * time_s)
    return (tone + rng.normal(size=num_samples) * 0.01).astype(np.float32)


def definition(signal, num_mels=80):
    """Povey's window over 25 ms of samples, pre-emphasis 0.97, power in 512 bins, triangles equal in mel from 20 Hz."""

    def mel(hz):
        return 1127 * np.log(1 + np.asarray(hz, dtype=float) / 700)

    num_frames = max(0, (len(signal) - 400) // 160 + 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    edges = np.linspace(mel(20), mel(8000), num_mels + 2)
    bins = mel(np.arange(256) * 16000 / 512)[None, :]
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.clip(
        np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)), 0, None
    )
    rows = np.empty((num_frames, num_mels))
    for row in range(num_frames):
        frame = signal[row * 160 : row * 160 + 400].astype(float) * 32768
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        rows[row] = np.log(np.maximum(triangles @ power[:256], np.finfo(np.float32).eps))
    return rows


@pytest.mark.parametrize("num_mels", [80, 40])
def test_features_are_those_of_kaldis_definition(num_mels):
    signal = samples(16000)
    np.testing.assert_allclose(fbank(signal, num_mels), definition(signal, num_mels), atol=1e-3)


@pytest.mark.parametrize(
    ("num_samples", "num_frames"),
    [(0, 0), (1, 0), (160, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)],
)
def test_a_frame_needs_25_ms_of_samples(num_samples, num_frames):
    assert fbank(samples(num_samples)).shape == (num_frames, 80)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 2000), max_size=20))
def test_pieces_of_any_size_give_the_frames_of_the_whole(sizes):
    signal = samples(12000)
    stream = StreamingFbank()
    pieces, start = [], 0
    for size in sizes:
        pieces.append(stream.accept(signal[start : start + size]))
        start += size
    pieces.append(stream.accept(signal[start:]))
    np.testing.assert_allclose(np.concatenate(pieces), fbank(signal), atol=1e-3)


def test_silence_is_finite():
    assert np.isfinite(fbank(np.zeros(4000, np.float32))).all()
