"""The families of models that a repository can serve, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oasr_backend.models.base import Recognizer
from oasr_backend.models.whisper import WhisperConfig, WhisperRecognizer


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model.

    options: the frozen dataclass of its options, read from `config.pbtxt` parameters.
    load: builds the recognizer from an instance of `options`.
    """

    options: type
    load: Callable[[Any], Recognizer]


FAMILIES: dict[str, Family] = {"whisper": Family(WhisperConfig, WhisperRecognizer)}
