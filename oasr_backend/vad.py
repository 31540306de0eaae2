"""Where somebody speaks, by the Silero model that faster-whisper ships, and where long audio is best cut.

It knows nothing of the recognizer that transcribes the pieces. The same samples always get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples, amplified
from oasr_backend.errors import ConfigError

WINDOW_SAMPLES = 512
"""32 ms: the model gives one probability for each."""

CONTEXT_SAMPLES = 64
"""The model sees this much of the window before."""

STATE_SIZE = 128
WINDOWS_PER_RUN = 64
"""About 2 s a call: `has_speech` looks no farther than the first one that answers it."""

SPEECH_THRESHOLD = 0.5
MIN_SPEECH_WINDOWS = 2
"""64 ms. Loud white noise reached a probability of 0.43 in one window of 938, a word cut to 0.1 s three windows
above the threshold; our shortest card
clip has 16 of them at 8 kHz, its weakest form."""

MIN_SPEECH_S = MIN_SPEECH_WINDOWS * WINDOW_SAMPLES / SAMPLE_RATE_HZ

Probabilities = NDArray[np.float32]


class SpeechDetector:
    """The voice activity model; safe to call from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the ONNX file at `path`, or the one that the installed faster-whisper carries."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(path or _shipped_model()), options, providers=["CPUExecutionProvider"]
        )

    def probabilities(self, samples: Samples) -> Probabilities:
        """Return (windows,) float32: the probability of speech in each 32 ms of `samples`, the last one padded."""
        return np.concatenate([np.zeros(0, np.float32), *self._runs(samples)])

    def speech_seconds(self, samples: Samples, threshold: float = SPEECH_THRESHOLD) -> float:
        """Return for how long somebody speaks."""
        num_windows = int(np.count_nonzero(self.probabilities(samples) >= threshold))
        return num_windows * WINDOW_SAMPLES / SAMPLE_RATE_HZ

    def has_speech(self, samples: Samples, threshold: float = SPEECH_THRESHOLD) -> bool:
        """Return whether at least 64 ms of `samples` are speech; costs no more than finding that out takes."""
        num_windows = 0
        for run in self._runs(samples):
            num_windows += int(np.count_nonzero(run >= threshold))
            if num_windows >= MIN_SPEECH_WINDOWS:
                return True
        return False

    def cut_point(self, samples: Samples, max_samples: int) -> int:
        """Return where to cut `samples`, which are longer than `max_samples`: a count, at most `max_samples`.

        Only the first `max_samples` are looked at, so that the answer depends on no read-ahead. The cut lies in
        their latter half: in the middle of the best silence, else where it is quietest.
        """
        assert len(samples) >= max_samples, "only what is longer than a piece needs cutting"
        start = max_samples // 2
        warm_up_start = max(0, start - SAMPLE_RATE_HZ)
        probabilities = self.probabilities(samples[warm_up_start:max_samples])
        skipped = (start - warm_up_start) // WINDOW_SAMPLES
        silence = best_silence(probabilities[skipped:])
        if silence is None:
            return start + quietest_point(samples[start:max_samples])
        middle = warm_up_start + round((skipped + silence.middle) * WINDOW_SAMPLES)
        return min(middle, max_samples)

    def _runs(self, samples: Samples) -> Iterator[Probabilities]:
        hidden = np.zeros((1, 1, STATE_SIZE), np.float32)
        cell = np.zeros((1, 1, STATE_SIZE), np.float32)
        for windows in _windows(amplified(samples)):
            inputs = {"input": windows, "h": hidden, "c": cell}
            speech, hidden, cell = self._session.run(None, inputs)
            yield speech.reshape(-1)


@dataclass(frozen=True, slots=True)
class Silence:
    """A stretch of windows in which nobody speaks: [start, end)."""

    start: int
    end: int

    @property
    def num_windows(self) -> int:
        return self.end - self.start

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


SILENCE_THRESHOLD = 0.35
MIN_SILENCE_WINDOWS = 3
LONG_SILENCE_WINDOWS = 16
"""0.5 s: a pause between sentences. A longer one is no better a place to cut."""

LATENESS_WEIGHT = 0.5
"""A silence at the very end beats one at the very start of the region that is up to 0.25 s longer: fewer pieces."""


def best_silence(probabilities: Probabilities) -> Silence | None:
    """Return the best place to cut, a long and late one; None where nobody pauses for 0.1 s.

    probabilities: (windows,) float32, of the region where a cut may lie.
    """

    def merit(silence: Silence) -> float:
        length = min(silence.num_windows, LONG_SILENCE_WINDOWS) / LONG_SILENCE_WINDOWS
        return length + LATENESS_WEIGHT * silence.middle / len(probabilities)

    return max(_silences(probabilities), key=merit, default=None)


def quietest_point(samples: Samples, span_s: float = 0.1) -> int:
    """Return the middle of the `span_s` that holds the least energy; `samples` are (samples,) float32 at 16 kHz."""
    step = SAMPLE_RATE_HZ // 100
    num_steps = len(samples) // step
    span_steps = min(num_steps, round(span_s * 100))
    if span_steps == 0:
        return len(samples)
    energy = (
        np.square(samples[: num_steps * step], dtype=np.float64)
        .reshape(num_steps, step)
        .sum(axis=1)
    )
    total = np.convolve(energy, np.ones(span_steps), "valid")
    latest_first = total[::-1]  # of equal ones the latest
    return round((len(total) - 1 - int(np.argmin(latest_first)) + span_steps / 2) * step)


def _silences(probabilities: Probabilities) -> list[Silence]:
    quiet = np.concatenate([[False], probabilities < SILENCE_THRESHOLD, [False]])
    edges = np.flatnonzero(quiet[1:] != quiet[:-1]).tolist()
    found = [Silence(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return [silence for silence in found if silence.num_windows >= MIN_SILENCE_WINDOWS]


def _windows(samples: Samples) -> Iterator[Samples]:
    """Yield (windows, 576) float32, up to 64 windows at a time: each with the end of the one before it in front."""
    run_samples = WINDOWS_PER_RUN * WINDOW_SAMPLES
    for start in range(0, len(samples), run_samples):
        run = samples[max(0, start - CONTEXT_SAMPLES) : start + run_samples]
        before = CONTEXT_SAMPLES if start == 0 else 0
        num_windows = -(-(len(run) + before - CONTEXT_SAMPLES) // WINDOW_SAMPLES)
        after = num_windows * WINDOW_SAMPLES + CONTEXT_SAMPLES - before - len(run)
        run = np.pad(run, (before, after))
        yield np.lib.stride_tricks.sliding_window_view(run, WINDOW_SAMPLES + CONTEXT_SAMPLES)[
            ::WINDOW_SAMPLES
        ]


def _shipped_model() -> Path:
    """Find the file without importing faster-whisper, which would load a video library with it."""
    spec = find_spec("faster_whisper")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(
        path for folder in folders for path in Path(folder, "assets").glob("silero_vad*.onnx")
    )
    if not found:
        raise ConfigError(
            "no silero_vad*.onnx was found in the package faster_whisper, which finds speech and silence: "
            "pip install --force-reinstall faster-whisper"
        )
    return found[-1]
