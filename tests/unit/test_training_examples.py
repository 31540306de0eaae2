"""What a training step hears and must spell."""

import numpy as np
import pytest

from oasr_backend.training.corpus import Corpus
from oasr_backend.training.examples import UNITS, decode, encode, feature_statistics, make_example
from oasr_backend.training.fbank import fbank


def numbers(units):
    return [UNITS.index("<blank>" if unit == "-" else unit) for unit in units]


@pytest.fixture
def speech():
    random = np.random.default_rng(0)
    samples = (random.standard_normal(16000 * 6) * 3000).astype(np.int16)
    starts = np.array([0, 16000, 48000, 96000])
    return Corpus(samples, starts, ["go", "ten of clubs", "yes"], ["a", "b", "c"])


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


def test_the_same_seed_makes_the_same_example_whatever_was_made_before(speech):
    first, tokens = make_example(speech, (1,), (1, 0, 1))
    make_example(speech, (2,), (1, 0, 2))
    again, _ = make_example(speech, (1,), (1, 0, 1))
    assert np.array_equal(first, again)
    assert tokens == encode("ten of clubs")
    other, _ = make_example(speech, (1,), (1, 1, 1))
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_joined_utterances_are_heard_and_spelled_one_after_another(speech):
    features, tokens = make_example(speech, (0, 2), (1, 0, 0))
    assert decode(tokens) == "go yes"
    assert len(features) > 100 * (1 + 3) / 1.2


def test_statistics_are_of_the_features_that_training_hears(speech):
    mean, deviation = feature_statistics(speech, 3, seed=0)
    assert mean.shape == deviation.shape == (80,)
    frames = np.concatenate([make_example(speech, (i,), (0, i))[0] for i in range(3)])
    assert mean == pytest.approx(frames.mean(axis=0), abs=1e-3)
    assert deviation == pytest.approx(frames.std(axis=0), abs=1e-3)
