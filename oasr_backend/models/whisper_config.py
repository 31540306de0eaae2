"""The options of the Whisper family and what they may be.

It loads nothing: a wrong option is found before a model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasr_backend.errors import ConfigError
from oasr_backend.vad import SPEECH_THRESHOLD

DEVICES = ("auto", "cpu", "cuda")
COMPUTE_TYPES = (
    "auto",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
    "float32",
)
MAX_BEAM_SIZE = 32


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """Which model to run, on what, and how carefully. Raises ConfigError where a value is not allowed.

    model_dir: a folder, a hub name or size, or "" for the packaged tiny.en.
    device: "auto" takes a GPU where CTranslate2 finds one.
    compute_type: "auto" is int8 on a CPU and float16 on a GPU.
    intra_threads: CPU threads of one batch; 0 takes all cores that this process may use.
    beam_size: 1 is greedy; 5 is what Whisper was published with.
    vad_filter: answer '' where the voice detector hears nobody, instead of what Whisper makes up there.
    vad_threshold: the probability from which 32 ms count as speech.
    short_window: encode short clips in a window of 8 to 20 s instead of 30 s: much cheaper, as many words right.
    """

    model_dir: str = ""
    device: str = "auto"
    compute_type: str = "auto"
    intra_threads: int = 1
    beam_size: int = 5
    vad_filter: bool = True
    vad_threshold: float = SPEECH_THRESHOLD
    short_window: bool = True

    def __post_init__(self) -> None:
        _require_choice("device", self.device, DEVICES)
        _require_choice("compute_type", self.compute_type, COMPUTE_TYPES)
        _require_range("intra_threads", self.intra_threads, 0, 1024)
        _require_range("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        _require_range("vad_threshold", self.vad_threshold, 0.01, 0.99)


def _require_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{key} is {value!r}; allowed are {', '.join(allowed)}: set it to one of them"
        )


def _require_range(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{key} is {value}; allowed are {low} to {high}: set it to a value between them"
        )
