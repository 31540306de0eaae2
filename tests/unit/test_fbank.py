"""The feature graph: against kaldi-native-fbank and the definition in numpy, whole, in batches and in pieces."""

from __future__ import annotations

from pathlib import Path

import kaldi_native_fbank
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oasr_backend.export.features import FbankGraph
from oasr_backend.features.fbank import num_frames, num_samples
from oasr_backend.models.ctc import demo_model
from oasr_backend.runtime.onnx import OnnxRuntime

RUNTIME = OnnxRuntime(demo_model(), num_threads=1)
CLIPS = sorted((Path(__file__).parents[1] / "data").glob("c*/*.wav"))


def fbank(signal, num_mels=80):
    """Return features of (samples,) as serving makes them; for other filters than 80, as PyTorch does."""
    if num_mels == 80:
        return RUNTIME.features(signal[np.newaxis])[0]
    return FbankGraph(num_mels)(torch.from_numpy(signal[np.newaxis]))[0].numpy()


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


def kaldi(signal, num_mels=80):
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = num_mels
    extractor = kaldi_native_fbank.OnlineFbank(options)
    extractor.accept_waveform(16000, (signal * np.float32(32768)).tolist())
    return np.stack([extractor.get_frame(n) for n in range(extractor.num_frames_ready)])


@pytest.mark.parametrize("num_mels", [80, 40])
def test_features_are_those_of_kaldis_definition(num_mels):
    signal = samples(16000)
    np.testing.assert_allclose(fbank(signal, num_mels), definition(signal, num_mels), atol=1e-3)


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
def test_features_of_speech_are_those_of_kaldi_native_fbank(path):
    speech, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_allclose(fbank(speech), kaldi(speech), atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 30.0])
@pytest.mark.parametrize("num_mels", [80, 23])
def test_features_at_any_level_are_those_of_kaldi_native_fbank(scale, num_mels):
    signal = np.random.default_rng(1).normal(scale=0.1 * scale, size=16000).astype(np.float32)
    np.testing.assert_allclose(fbank(signal, num_mels), kaldi(signal, num_mels), atol=1e-3)


def test_an_offset_of_the_samples_makes_no_difference():
    signal = (np.random.default_rng(2).normal(size=16000) * 1e-3).astype(np.float32)
    np.testing.assert_allclose(fbank(signal + np.float32(0.25)), fbank(signal), atol=1e-3)


@pytest.mark.parametrize(
    ("given", "made"),
    [(0, 0), (1, 0), (160, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)],
)
def test_a_frame_needs_25_ms_of_samples(given, made):
    assert num_frames(given) == made
    assert not made or fbank(samples(given)).shape == (made, 80)
    assert not made or num_samples(made) <= given < num_samples(made + 1)


def test_each_waveform_of_a_batch_has_the_features_that_it_has_alone():
    batch = np.stack([samples(5000, seed) for seed in range(6)])
    features = RUNTIME.features(batch)
    assert features.shape == (6, 29, 80)
    np.testing.assert_allclose(features[5], fbank(batch[5]), atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(frames=st.lists(st.integers(1, 20), max_size=10))
def test_the_frames_of_a_piece_are_those_of_the_whole(frames):
    signal = samples(12000)
    whole, start = fbank(signal), 0
    for count in frames:
        if start >= len(whole):
            break
        first = start * 160
        piece = fbank(signal[first : first + num_samples(count)])
        np.testing.assert_allclose(piece, whole[start : start + count][: len(piece)], atol=1e-3)
        start += count


def test_silence_is_finite():
    assert np.isfinite(fbank(np.zeros(4000, np.float32))).all()
