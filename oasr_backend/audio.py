"""Samples as a client sent them in, checked 16 kHz samples out, a block at a time.

It knows nothing of Triton's tensors, of features or of models.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import soxr
from numpy.typing import NDArray

from oasr_backend.errors import ClientError

Samples = NDArray[np.float32]
"""One channel in ±1: (samples,) float32."""

SAMPLE_RATE_HZ = 16_000
"""The rate that every model here listens at."""

MIN_SAMPLE_RATE_HZ = 8_000
MAX_SAMPLE_RATE_HZ = 192_000

MAX_AMPLITUDE = 8.0
"""Full scale is 1. Clipped and resampled audio overshoots it by some decibels; audio beyond 18 dB above it was
never scaled: 16-bit integers passed as floats reach thousands."""

QUIET_PEAK = 0.1
MAX_GAIN = 1_000.0
"""Below a peak of about 0.001 the voice detector hears nothing, and Whisper tiny.en gets 11 % of the words wrong
instead of 4 %, since its features end at a fixed floor. Amplified, quiet speech is as good as loud, and noise stays
noise."""

BLOCK_SAMPLES = 1 << 18
"""Input samples checked or resampled at a time: 1 MB, so that checking an hour needs no second hour."""

SHORT_SAMPLES = 8_000
"""Of so many the energy is looked at first, which takes a third of the time that the extremes take."""

RESAMPLER_QUALITY = "HQ"
"""soxr's 20-bit setting: its errors lie below those of 16-bit audio."""


def check_samples(samples: Samples) -> None:
    """Raise ClientError where `samples` ((samples,) float32) are not finite numbers at a scale of about ±1."""
    for start in range(0, len(samples), BLOCK_SAMPLES):
        block = samples[start : start + BLOCK_SAMPLES]
        # In sum no louder than one sample may be: with a NaN it is not. Of a stream's pieces most are as quiet.
        if len(block) <= SHORT_SAMPLES and float(np.dot(block, block)) < MAX_AMPLITUDE**2:
            continue
        low, high = np.minimum.reduce(block), np.maximum.reduce(block)
        if not (low >= -MAX_AMPLITUDE and high <= MAX_AMPLITUDE):  # a NaN anywhere makes both NaN
            if np.isfinite(low) and np.isfinite(high):
                raise _too_loud(block, start)
            raise _not_finite(block, start)


def check_sample_rate(sample_rate_hz: int) -> None:
    """Raise ClientError where the rate is none that can be resampled."""
    if not MIN_SAMPLE_RATE_HZ <= sample_rate_hz <= MAX_SAMPLE_RATE_HZ:
        raise ClientError(
            f"sample_rate is {sample_rate_hz} Hz; allowed are {MIN_SAMPLE_RATE_HZ} to {MAX_SAMPLE_RATE_HZ} Hz: "
            "send the rate at which the samples were recorded, or resample them"
        )


def check_duration(num_samples: int, sample_rate_hz: int, max_audio_s: float) -> None:
    """Raise ClientError where `num_samples` last longer than `max_audio_s`."""
    duration_s = num_samples / sample_rate_hz
    if duration_s > max_audio_s:
        raise ClientError(
            f"audio is {_just_above(duration_s, max_audio_s)} s; limit is {_seconds(max_audio_s)} s (max_audio_s): "
            "split it or raise the limit"
        )


class AudioReader:
    """Reads a clip from its start to its end at 16 kHz, resampling only what is asked for.

    The output is the same to the last bit however it is asked for. Beyond the clip itself it holds about a block
    of input and a block of output.
    """

    def __init__(self, samples: Samples, sample_rate_hz: int = SAMPLE_RATE_HZ) -> None:
        """Read `samples`, (samples,) float32, which must stay unchanged until they are read."""
        check_sample_rate(sample_rate_hz)
        self._samples = samples
        self._blocks = _blocks_at_16_khz(samples, sample_rate_hz)
        self._ahead = np.zeros(0, np.float32)

    def read(self, num_samples: int) -> Samples:
        """Return the next `num_samples` samples at 16 kHz, (samples,) float32; fewer only at the end of the clip.

        They are a view where one block holds them all.
        """
        parts = []
        num_missing = num_samples
        while num_missing and self._look_ahead():
            parts.append(self._ahead[:num_missing])
            self._ahead = self._ahead[num_missing:]
            num_missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.float32)])

    def _look_ahead(self) -> bool:
        """Make sure that there is something ahead; False at the end of the clip."""
        while not len(self._ahead):
            block = next(
                self._blocks, None
            )  # empty where the resampler holds its first samples back
            if block is None:
                return False
            self._ahead = block
        return True


def resample(samples: Samples, sample_rate_hz: int) -> Samples:
    """Return the whole of `samples`, (samples,) float32, at 16 kHz: what AudioReader returns in pieces."""
    check_sample_rate(sample_rate_hz)
    return np.concatenate([*_blocks_at_16_khz(samples, sample_rate_hz), np.zeros(0, np.float32)])


def amplified(samples: Samples) -> Samples:
    """Return one piece, (samples,) float32, louder where it never reaches a tenth of full scale."""
    peak = max(float(samples.max()), -float(samples.min())) if len(samples) else 0.0
    if not 0.0 < peak < QUIET_PEAK:
        return samples
    return samples * np.float32(min(QUIET_PEAK / peak, MAX_GAIN))


def _blocks_at_16_khz(samples: Samples, sample_rate_hz: int) -> Iterator[Samples]:
    """Yield the clip at 16 kHz; blocks are views where nothing needs resampling."""
    blocks = range(0, len(samples), BLOCK_SAMPLES)
    if sample_rate_hz == SAMPLE_RATE_HZ:
        for start in blocks:
            yield samples[start : start + BLOCK_SAMPLES]
        return
    stream = soxr.ResampleStream(
        sample_rate_hz, SAMPLE_RATE_HZ, 1, dtype="float32", quality=RESAMPLER_QUALITY
    )
    for start in blocks:
        end = start + BLOCK_SAMPLES
        block = np.ascontiguousarray(samples[start:end])
        yield np.asarray(stream.resample_chunk(block, last=end >= len(samples)), dtype=np.float32)


def _seconds(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


def _just_above(value: float, limit: float) -> str:
    """Write `value` with one decimal, or with as many as it takes to show that it exceeds `limit`."""
    for decimals in range(1, 7):
        text = f"{value:.{decimals}f}"
        if float(text) > limit:
            return text
    return repr(value)


def _not_finite(block: Samples, start: int) -> ClientError:
    index = int(np.argmin(np.isfinite(block)))
    return ClientError(
        f"audio is {float(block[index])} at sample {start + index}; samples must be finite numbers: "
        "mend what computes them, or replace them with 0"
    )


def _too_loud(block: Samples, start: int) -> ClientError:
    index = int(np.argmax(np.abs(block) > MAX_AMPLITUDE))
    return ClientError(
        f"audio is {float(block[index]):g} at sample {start + index}; limit is ±{MAX_AMPLITUDE:g} and full scale "
        "is ±1: divide 16-bit samples by 32768"
    )
