"""What a training step hears and must spell."""

from dataclasses import replace

import numpy as np
import pytest

from oasr_backend.training.corpus import Corpus
from oasr_backend.training.examples import (
    UNITS,
    Recordings,
    decode,
    encode,
    fbank,
    feature_statistics,
    make_example,
)


def numbers(units):
    return [UNITS.index("<blank>" if unit == "-" else unit) for unit in units]


@pytest.fixture
def recordings(tmp_path):
    random = np.random.default_rng(0)
    samples = (random.standard_normal(16000 * 6) * 3000).astype(np.int16)
    starts = np.array([0, 16000, 48000, 96000])
    speech = Corpus(samples, starts, ["go", "ten of clubs", "yes"], ["a", "b", "c"])
    return Recordings(speech, tmp_path / "recordings", seed=1, num_versions=2)


def test_letters_come_back_from_a_path_that_blanks_double_letters():
    assert decode(numbers("--q-uu-e-een-")) == "queen"
    assert decode(numbers("quueeen")) == "quen"


def test_spaces_are_single_and_never_at_the_ends():
    assert decode(numbers("▁▁go▁-▁up▁")) == "go up"


def test_units_that_are_no_letters_are_not_spelled():
    assert decode([UNITS.index("<unk>"), *numbers("no"), UNITS.index("<sos/eos>")]) == "no"


def test_every_letter_has_a_number_of_its_own_and_the_blank_is_zero():
    assert UNITS[0] == "<blank>"
    assert len(set(UNITS)) == len(UNITS) == 31
    assert decode(encode("don't go")) == "don't go"


def test_features_are_whole_frames_of_25_ms_every_10_ms():
    assert fbank(np.zeros(399, np.float32)).shape == (0, 80)
    assert fbank(np.zeros(400, np.float32)).shape == (1, 80)
    assert fbank(np.zeros(16000, np.float32)).shape == (98, 80)


def test_features_are_of_samples_in_the_range_of_16_bit_integers():
    speech = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 0.1
    louder = fbank(speech * 2) - fbank(speech)
    assert louder.mean() == pytest.approx(np.log(4), abs=1e-3)
    assert fbank(speech).mean() > 10  # the same samples without the scale come out below -3


def test_the_same_epoch_makes_the_same_example_whatever_was_made_before(recordings):
    first, tokens = make_example(recordings, (1,), epoch=0)
    make_example(recordings, (2,), epoch=0)
    again, _ = make_example(recordings, (1,), epoch=0)
    assert np.array_equal(first, again)
    assert tokens == encode("ten of clubs")


def test_a_recording_comes_back_warped_and_masked_anew(recordings):
    first, _ = make_example(recordings, (1,), epoch=0)
    later, _ = make_example(recordings, (1,), epoch=2)
    assert first.shape == later.shape
    assert not np.array_equal(first, later)


def test_an_utterance_has_as_many_recordings_as_asked_for(recordings):
    kept = [recordings.features(1, version) for version in range(3)]
    assert not np.array_equal(kept[0], kept[1])
    assert np.array_equal(kept[0], kept[2])


def test_a_recording_is_the_same_made_or_kept(recordings, tmp_path):
    made = recordings.features(1, 0)
    assert np.array_equal(made, recordings.features(1, 0))
    elsewhere = replace(recordings, folder=tmp_path / "elsewhere")
    assert np.array_equal(made, elsewhere.features(1, 0))


def test_joined_utterances_are_heard_and_spelled_one_after_another(recordings):
    features, tokens = make_example(recordings, (0, 2), epoch=0)
    assert decode(tokens) == "go yes"
    assert len(features) == sum(len(recordings.features(index, 0)) for index in (0, 2))


def test_statistics_are_of_the_recordings(recordings):
    mean, deviation = feature_statistics(recordings, 3)
    frames = np.concatenate([recordings.features(index, 0) for index in range(3)])
    assert mean == pytest.approx(frames.mean(axis=0), abs=1e-3)
    assert deviation == pytest.approx(frames.std(axis=0), abs=1e-3)
