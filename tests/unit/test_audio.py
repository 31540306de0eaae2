"""Samples in, checked 16 kHz samples out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from oasr_backend.audio import (
    BLOCK_SAMPLES,
    AudioReader,
    amplified,
    check_duration,
    check_sample_rate,
    check_samples,
    resample,
)
from oasr_backend.errors import ClientError
from oasr_backend.segment import pieces

MUST_BE_FINITE = "samples must be finite numbers: mend what computes them, or replace them with 0"


def noise(num_samples, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(num_samples)).astype(np.float32)


def tone(sample_rate_hz, duration_s=2.0, frequency_hz=440.0):
    times_s = np.arange(round(duration_s * sample_rate_hz)) / sample_rate_hz
    return np.sin(2 * np.pi * frequency_hz * times_s).astype(np.float32)


def with_value(value, index, num_samples=1000):
    samples = np.zeros(num_samples, np.float32)
    samples[index] = value
    return samples


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (
            with_value(np.nan, 17),
            f"audio is nan at sample 17; {MUST_BE_FINITE}",
        ),
        (
            with_value(-np.inf, BLOCK_SAMPLES + 3, BLOCK_SAMPLES + 10),
            f"audio is -inf at sample {BLOCK_SAMPLES + 3}; {MUST_BE_FINITE}",
        ),
        (
            with_value(-12345.0, 999),
            "audio is -12345 at sample 999; limit is ±8 and full scale is ±1: divide 16-bit samples by 32768",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_samples_that_are_no_audio_are_refused(samples, text):
    with pytest.raises(ClientError) as caught:
        check_samples(samples)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "samples", [np.zeros(0, np.float32), with_value(1, 0, 1), with_value(-3.5, 5)]
)
def test_empty_loud_and_clipped_audio_is_accepted(samples):
    check_samples(samples)


@pytest.mark.parametrize("sample_rate_hz", [0, -16_000, 7_999, 192_001])
def test_rates_outside_8_to_192_khz_are_refused(sample_rate_hz):
    with pytest.raises(ClientError) as caught:
        check_sample_rate(sample_rate_hz)
    assert str(caught.value) == (
        f"sample_rate is {sample_rate_hz} Hz; allowed are 8000 to 192000 Hz: "
        "send the rate at which the samples were recorded, or resample them"
    )


@pytest.mark.parametrize("sample_rate_hz", [8_000, 11_025, 192_000])
def test_rates_from_8_to_192_khz_are_accepted(sample_rate_hz):
    check_sample_rate(sample_rate_hz)


@pytest.mark.parametrize(
    ("num_samples", "duration_s"),
    [(659_200, "41.2"), (480_001, "30.0001"), (480_100, "30.01")],
)
def test_longer_audio_than_allowed_is_refused_with_a_duration_above_the_limit(
    num_samples, duration_s
):
    with pytest.raises(ClientError) as caught:
        check_duration(num_samples, 16_000, 30.0)
    assert str(caught.value) == (
        f"audio is {duration_s} s; limit is 30.0 s (max_audio_s): split it or raise the limit"
    )


def test_the_duration_counts_at_the_rate_of_the_client():
    check_duration(44_100 * 30, 44_100, 30.0)
    with pytest.raises(ClientError):
        check_duration(44_100 * 30 + 1, 44_100, 30.0)


def read_all(samples, sample_rate_hz, read_samples):
    reader = AudioReader(samples, sample_rate_hz)
    blocks = [reader.read(read_samples)]
    while len(blocks[-1]):
        blocks.append(reader.read(read_samples))
    assert all(len(block) == read_samples for block in blocks[:-2])
    return np.concatenate(blocks)


@pytest.mark.parametrize("sample_rate_hz", [8_000, 11_025, 16_000, 44_100, 48_000, 192_000])
@pytest.mark.parametrize("read_samples", [997, 16_000])
def test_audio_read_in_pieces_equals_audio_resampled_at_once(sample_rate_hz, read_samples):
    samples = noise(BLOCK_SAMPLES + 12_345)
    assert_array_equal(
        read_all(samples, sample_rate_hz, read_samples), resample(samples, sample_rate_hz)
    )


@pytest.mark.parametrize("sample_rate_hz", [8_000, 22_050, 44_100, 192_000])
def test_a_tone_keeps_its_pitch_and_level(sample_rate_hz):
    resampled = resample(tone(sample_rate_hz), sample_rate_hz)
    expected = tone(16_000)
    assert len(resampled) == len(expected)
    inner = slice(1_000, -1_000)
    np.testing.assert_allclose(resampled[inner], expected[inner], atol=1e-4)


def test_what_16_khz_cannot_hold_does_not_come_back_as_another_tone():
    resampled = resample(tone(44_100, frequency_hz=11_000.0), 44_100)
    assert np.abs(resampled[1_000:-1_000]).max() < 1e-3


@pytest.mark.parametrize("sample_rate_hz", [8_000, 16_000, 44_100])
@pytest.mark.parametrize("num_samples", [0, 1, 2])
def test_next_to_no_audio_is_read_without_an_error(num_samples, sample_rate_hz):
    resampled = read_all(noise(num_samples), sample_rate_hz, 100)
    assert abs(len(resampled) - num_samples * 16_000 / sample_rate_hz) < 1


def test_a_reader_holds_no_more_than_a_block_ahead():
    reader = AudioReader(noise(20 * BLOCK_SAMPLES), 44_100)
    reader.read(1)
    assert len(reader._ahead) <= BLOCK_SAMPLES


def test_what_is_read_at_16_khz_is_not_changed_by_the_next_read():
    samples = noise(50_000)
    reader = AudioReader(samples)
    first = reader.read(100)
    reader.read(1_000)
    assert_array_equal(first, samples[:100])


def test_pieces_together_are_the_clip_and_each_knows_where_it_starts():
    samples = noise(100_001)
    cuts = iter([7_000, 10_000, 1, 9_999, *[8_000] * 20])
    found = list(pieces(AudioReader(samples), 10_000, lambda held: next(cuts)))
    assert_array_equal(np.concatenate([piece.samples for piece in found]), samples)
    assert max(len(piece.samples) for piece in found) <= 10_000
    starts = np.cumsum([0, *[len(piece.samples) for piece in found[:-1]]])
    assert [piece.start_sample for piece in found] == starts.tolist()


@pytest.mark.parametrize("num_samples", [0, 1, 9_999, 10_000])
def test_a_clip_that_fits_is_one_piece_and_never_cut(num_samples):
    def never(held):
        raise AssertionError("a clip that fits needs no cut")

    [piece] = pieces(AudioReader(noise(num_samples)), 10_000, never)
    assert (piece.start_s, len(piece.samples)) == (0.0, num_samples)


def test_a_cut_sees_more_than_a_piece_and_bounded_read_ahead():
    seen = []

    def cut(held):
        seen.append(len(held))
        return 5_000

    list(pieces(AudioReader(noise(50_000)), 10_000, cut))
    assert set(seen) == {10_001}


def test_quiet_audio_is_amplified_to_a_tenth_and_no_further_than_a_thousandfold():
    assert np.abs(amplified(0.001 * tone(16_000))).max() == pytest.approx(0.1, rel=1e-3)
    assert amplified(with_value(1e-6, 3))[3] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "samples", [np.zeros(0, np.float32), np.zeros(5, np.float32), with_value(-0.1, 2)]
)
def test_loud_audio_and_silence_stay_as_they_are(samples):
    assert amplified(samples) is samples
