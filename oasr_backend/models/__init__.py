"""The families of models that a repository can serve, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oasr_backend.models.base import Recognizer
from oasr_backend.models.ctc import CtcConfig
from oasr_backend.models.ctc_offline import CtcRecognizer
from oasr_backend.models.ctc_streams import CtcStreams
from oasr_backend.models.streams import StreamingModel
from oasr_backend.models.whisper import WhisperConfig, WhisperRecognizer


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model.

    options: the frozen dataclass of its options, read from `config.pbtxt` parameters.
    load: builds the recognizer of whole utterances from an instance of `options`.
    load_streams: builds the model of streams from `options` and the most streams that run; None where none can.
    """

    options: type
    load: Callable[[Any], Recognizer]
    load_streams: Callable[[Any, int], StreamingModel[Any]] | None = None


FAMILIES: dict[str, Family] = {
    "ctc": Family(CtcConfig, CtcRecognizer, CtcStreams),
    "whisper": Family(WhisperConfig, WhisperRecognizer),
}
