"""The real voice detector on real speech, on what is no speech, and as a guide to cutting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from oasr_backend.audio import AudioReader
from oasr_backend.segment import pieces
from oasr_backend.vad import SpeechDetector, best_silence, quietest_point

CLIPS = sorted((Path(__file__).parents[1] / "data").glob("*/*.wav"))
PIECE_SAMPLES = 480_000


def read(path):
    return soundfile.read(path, dtype="float32")[0]


def joined(num_clips, seed=0):
    order = np.random.default_rng(seed).integers(0, len(CLIPS), num_clips)
    return np.concatenate([read(CLIPS[index]) for index in order])


def white_noise(level):
    return (level * np.random.default_rng(0).standard_normal(160_000)).astype(np.float32)


def no_speech():
    times_s = np.arange(160_000) / 16_000
    walk = np.cumsum(white_noise(1.0))
    return {
        "nothing": np.zeros(0),
        "one sample": np.ones(1),
        "digital silence": np.zeros(160_000),
        "one bit of dither": np.random.default_rng(0).integers(-1, 2, 160_000) / 32_768,
        "noise at -60 dB": white_noise(0.001),
        "noise at -26 dB": white_noise(0.05),
        "noise at -6 dB": white_noise(0.5),
        "brown noise": walk / np.abs(walk).max(),
        "tone": 0.1 * np.sin(2 * np.pi * 440 * times_s),
        "hum": 0.01 * np.sin(2 * np.pi * 50 * times_s),
        "clicks": 0.5 * (np.random.default_rng(0).random(160_000) < 1e-4),
    }


@pytest.fixture(scope="module")
def detector():
    return SpeechDetector()


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
@pytest.mark.parametrize("gain", [1.0, 0.01, 0.0001])
def test_speech_is_heard_in_every_clip_however_quiet(detector, path, gain):
    samples = (gain * read(path)).astype(np.float32)
    assert detector.has_speech(samples)
    assert 0.3 < detector.speech_seconds(samples) / (len(samples) / 16_000) < 1.0


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
def test_speech_is_heard_over_a_telephone(detector, path):
    narrow = soxr.resample(soxr.resample(read(path), 16_000, 8_000), 8_000, 16_000)
    assert detector.has_speech(narrow)


@pytest.mark.parametrize("name", no_speech())
def test_no_speech_is_heard_where_nobody_speaks(detector, name):
    samples = no_speech()[name].astype(np.float32)
    assert not detector.has_speech(samples)
    assert detector.speech_seconds(samples) == 0.0


def test_a_single_word_is_heard_amid_30_s_of_silence(detector):
    samples = np.zeros(PIECE_SAMPLES, np.float32)
    word = read(CLIPS[0])
    samples[-len(word) :] = word
    assert detector.has_speech(samples)


def test_every_32_ms_have_a_probability_and_the_same_one_each_time(detector):
    samples = joined(10)
    probabilities = detector.probabilities(samples)
    assert len(probabilities) == -(-len(samples) // 512)
    np.testing.assert_array_equal(probabilities, detector.probabilities(samples))


def test_probabilities_do_not_depend_on_what_comes_later(detector):
    samples = joined(10)
    whole = detector.probabilities(samples)
    np.testing.assert_allclose(detector.probabilities(samples[: 512 * 200]), whole[:200], atol=1e-6)


def test_pieces_of_long_speech_end_in_silence_and_use_most_of_the_piece(detector):
    samples = joined(40)
    found = list(
        pieces(
            AudioReader(samples),
            PIECE_SAMPLES,
            lambda held: detector.cut_point(held, PIECE_SAMPLES),
        )
    )
    np.testing.assert_array_equal(np.concatenate([piece.samples for piece in found]), samples)
    speech = detector.probabilities(samples)
    for piece in found[1:]:
        middle = piece.start_sample // 512
        assert speech[middle - 1 : middle + 1].max() < 0.35
        assert len(found[found.index(piece) - 1].samples) >= PIECE_SAMPLES // 2
    assert len(found) <= 1.5 * len(samples) / PIECE_SAMPLES + 1


def test_a_cut_does_not_depend_on_how_much_was_read_ahead(detector):
    samples = joined(40)
    cuts = {
        detector.cut_point(samples[:num_samples], PIECE_SAMPLES)
        for num_samples in (480_001, 600_000, 900_000)
    }
    assert len(cuts) == 1


def test_without_a_pause_the_cut_lies_where_it_is_quietest():
    class HearsNoPause(SpeechDetector):
        def probabilities(self, samples):
            return np.ones(-(-len(samples) // 512), np.float32)

    samples = white_noise(0.1).repeat(4)
    samples[400_000:402_000] *= 0.5
    assert 400_000 <= HearsNoPause().cut_point(samples, PIECE_SAMPLES) <= 402_000


def test_silence_without_end_is_cut_within_the_piece(detector):
    assert (
        240_000 < detector.cut_point(np.zeros(700_000, np.float32), PIECE_SAMPLES) <= PIECE_SAMPLES
    )


SPEECH, SILENCE = 0.9, 0.1


def probabilities(*stretches):
    return np.concatenate(
        [np.full(num_windows, value, np.float32) for num_windows, value in stretches]
    )


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([(50, SPEECH)], None),
        ([(20, SPEECH), (2, SILENCE), (20, SPEECH)], None),
        ([(20, SPEECH), (10, SILENCE), (20, SPEECH)], (20, 30)),
        ([(20, SPEECH), (10, SILENCE), (20, SPEECH), (4, SILENCE), (5, SPEECH)], (20, 30)),
        ([(20, SPEECH), (10, SILENCE), (20, SPEECH), (10, SILENCE)], (50, 60)),
        ([(20, SPEECH), (400, SILENCE), (20, SPEECH), (16, SILENCE)], (440, 456)),
        ([(100, SILENCE)], (0, 100)),
    ],
    ids=[
        "none",
        "too short",
        "one",
        "the longer",
        "of equals the later",
        "long enough and later",
        "all",
    ],
)
def test_the_best_silence_is_long_and_late(windows, expected):
    silence = best_silence(probabilities(*windows))
    assert (silence and (silence.start, silence.end)) == expected


def test_the_quietest_point_of_equals_is_the_latest():
    assert quietest_point(np.zeros(16_000, np.float32)) == 16_000 - 800
    assert quietest_point(np.zeros(100, np.float32)) == 100
