"""What is done to clean speech before the demo model hears it."""

import numpy as np
import pytest

from oasr_backend.training import augment

RATE_HZ = augment.SAMPLE_RATE_HZ


def tone(hertz, seconds=1.0):
    times_s = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    return np.sin(2 * np.pi * hertz * times_s).astype(np.float32)


def loudest_hz(samples):
    return np.abs(np.fft.rfft(samples)).argmax() * RATE_HZ / len(samples)


def test_the_same_seed_distorts_alike():
    speech, other = tone(300), tone(700)
    first, again, else_ = (
        augment.distort(speech, other, np.random.default_rng(seed)) for seed in (5, 5, 6)
    )
    assert (first == again).all()
    assert len(first) != len(else_) or (first != else_).any()


@pytest.mark.parametrize("seed", range(12))
def test_distorted_speech_is_finite_float32_within_full_scale(seed):
    heard = augment.distort(tone(300), tone(700), np.random.default_rng(seed))
    assert heard.dtype == np.float32
    assert np.isfinite(heard).all()
    assert 0 < np.abs(heard).max() <= 1


def test_speed_moves_pitch_and_length_together():
    faster = augment.change_speed(tone(400), 1.2)
    assert len(faster) == pytest.approx(RATE_HZ / 1.2, abs=2)
    assert loudest_hz(faster) == pytest.approx(480, abs=2)


def test_noise_is_added_at_the_ratio_asked_for():
    speech, noise = tone(300), np.random.default_rng(0).standard_normal(RATE_HZ).astype(np.float32)
    added = augment.add_noise(speech, noise, 10.0) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(added**2)) == pytest.approx(10.0, abs=0.01)


def test_silence_as_noise_changes_nothing():
    speech = tone(300)
    assert augment.add_noise(speech, np.zeros_like(speech), 10.0) is speech


def test_a_telephone_keeps_what_lies_below_its_limit():
    kept = augment.cut_high_frequencies(tone(500) + tone(6000), 4000.0)
    middle = slice(1000, -1000)  # the ends ring
    assert kept[middle] == pytest.approx(tone(500)[middle], abs=0.01)


def test_a_room_keeps_the_length_and_the_direct_sound():
    click = np.zeros(RATE_HZ, np.float32)
    click[100] = 1.0
    heard = augment.reverberate(click, np.random.default_rng(0))
    assert len(heard) == RATE_HZ
    assert heard[100] == pytest.approx(1.0, abs=1e-5)
    assert np.abs(heard[:100]).max() < 1e-5
    assert np.abs(heard[101:]).max() > 0


def test_the_level_is_the_peak_below_full_scale():
    assert np.abs(augment.set_level(tone(300) * 0.01, -20.0)).max() == pytest.approx(0.1, abs=1e-4)


def test_warping_moves_a_peak_along_the_mel_axis_by_at_most_a_little():
    features = np.zeros((3, 80), np.float32)
    features[:, 40] = 1.0
    peaks = {
        int(augment.warp_mel_axis(features, np.random.default_rng(seed))[0].argmax())
        for seed in range(40)
    }
    assert min(peaks) >= 38
    assert max(peaks) <= 42
    assert len(peaks) >= 3


@pytest.mark.parametrize("num_frames", [1, 9, 200])
def test_masks_leave_the_shape_and_the_original(num_frames):
    features = np.random.default_rng(0).standard_normal((num_frames, 80)).astype(np.float32)
    before = features.copy()
    masked = augment.mask_spectrum(features, np.random.default_rng(1))
    assert masked.shape == features.shape
    assert (features == before).all()
    kept = masked == features
    assert kept.any()
    assert (masked[~kept] == features.mean()).all()
