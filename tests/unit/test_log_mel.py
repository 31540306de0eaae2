"""Whisper's spectrogram of a clip equals that of the clip zero-padded to 30 s."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from faster_whisper.feature_extractor import FeatureExtractor

from oasr_backend.features.log_mel import frames_touched, log_mel, padded, padding_value

CLIPS = sorted((Path(__file__).parents[1] / "data").glob("*/*.wav"))
WINDOW_SAMPLES = 480_000
EDGE_LENGTHS = [1, 159, 160, 161, 199, 200, 201, 399, 400, 401, 479_799, 479_801, 479_999, 480_000]


def read(path):
    return soundfile.read(path, dtype="float32")[0]


def speech(num_samples):
    return np.resize(np.concatenate([read(path) for path in CLIPS]), num_samples + 5_000)[5_000:]


def reference(samples, num_mels=80):
    window = np.pad(samples, (0, WINDOW_SAMPLES - len(samples)))
    return FeatureExtractor(num_mels)(window, padding=0)[:, :3000]


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
def test_features_of_real_clips_are_those_of_the_zero_padded_30_s(path):
    samples = read(path)
    np.testing.assert_allclose(padded(log_mel(samples)), reference(samples), atol=1e-4)


@pytest.mark.parametrize("num_samples", EDGE_LENGTHS)
def test_features_at_the_edges_of_the_window_are_those_of_the_zero_padded_30_s(num_samples):
    samples = speech(num_samples)
    np.testing.assert_allclose(padded(log_mel(samples)), reference(samples), atol=1e-4)


@pytest.mark.parametrize("num_samples", [400, 100_000])
def test_features_with_128_mels_are_those_of_the_large_v3_models(num_samples):
    samples = speech(num_samples)
    np.testing.assert_allclose(padded(log_mel(samples, 128)), reference(samples, 128), atol=1e-4)


@pytest.mark.parametrize("num_samples", [0, 400, 480_000])
def test_silence_is_the_lowest_value_everywhere(num_samples):
    features = padded(log_mel(np.zeros(num_samples, np.float32)))
    assert features.shape == (80, 3000)
    np.testing.assert_allclose(features, -1.5, rtol=1e-6)  # a CPU's log10 may round otherwise


@pytest.mark.parametrize(
    ("num_samples", "num_frames"), [(0, 0), (1, 2), (120, 2), (121, 3), (480_000, 3000)]
)
def test_only_the_frames_that_a_clip_touches_are_computed(num_samples, num_frames):
    assert frames_touched(num_samples) == num_frames
    assert log_mel(np.ones(num_samples, np.float32)).shape == (80, num_frames)


def test_the_padding_lies_two_below_the_loudest_value():
    features = np.array([[0.25, 1.0]], np.float32)
    assert padding_value(features) == -1.0
    assert padded(features, 4).tolist() == [[0.25, 1.0, -1.0, -1.0]]


def test_features_are_contiguous_float32_in_any_window():
    features = padded(log_mel(speech(16_000)), 500)
    assert (features.dtype, features.shape, features.flags.c_contiguous) == (
        np.float32,
        (80, 500),
        True,
    )
