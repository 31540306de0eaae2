"""What the engine asks of a family of speech models.

It knows nothing of Triton, of queues or of who asked: a recognizer prepares one utterance at a time and
transcribes a batch of prepared ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from oasr_backend.audio import Samples as Samples
from oasr_backend.request import FRAMES_PER_SECOND as FRAMES_PER_SECOND

UNSPACED_LANGUAGES = frozenset({"bo", "ja", "km", "lo", "my", "th", "yue", "zh"})
"""Languages written without spaces between words."""


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """What a client may ask of one utterance.

    language: an ISO 639-1 code, or None for the model's own choice.
    task: "transcribe", or "translate" (to English) where the model can.
    words: whether words with times are wanted; they cost an alignment.
    speech_frames: whether it is wanted how much of the audio is speech; the voice detector then hears all of it. Not
        the client asks for that, but the engine, where jobs are ordered by it.
    """

    language: str | None = None
    task: str = "transcribe"
    words: bool = False
    speech_frames: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """One piece of audio, ready for a batch.

    inputs: float32, of the piece alone, without padding: samples, or (mels, frames) where the model wants its features
        made beforehand.
    num_frames: the length of the audio in frames of 10 ms.
    has_speech: False where there is nothing to transcribe; such a piece never enters a batch.
    speech_frames: frames of 10 ms with speech; None where that was not asked for, or no voice detector ran.
    """

    inputs: NDArray[np.float32]
    num_frames: int
    options: TranscribeOptions
    has_speech: bool = True
    speech_frames: int | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A word and where it was said, in seconds from the start of its piece."""

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in one piece.

    tokens: the model's own token ids, without the special ones.
    confidence: mean probability of a token, 0 to 1; 1 for an empty text.
    """

    text: str
    tokens: tuple[int, ...] = ()
    words: tuple[Word, ...] = ()
    confidence: float = 1.0
    language: str | None = None


class Recognizer(Protocol):
    """A loaded model. `prepare` and `cut` are called from one thread, `transcribe` from others, several at once where
    `parallel_batches` says so."""

    max_piece_frames: int
    """The longest piece that one row of a batch can hold."""

    fixed_window_frames: int | None
    """The frames that every row costs, whatever its length; None where a row costs its length."""

    parallel_batches: int
    """How many batches it best runs at the same time: on a CPU as many as its threads leave cores for, else one."""

    prepares_at_once: bool
    """Whether `prepare` takes next to nothing, unless speech is to be counted: no thread is needed for it."""

    def window_frames(self, num_frames: int) -> int:
        """Return the frames that a row costs whose audio has `num_frames`: the window that it is encoded in, if any."""

    def check_options(self, options: TranscribeOptions) -> None:
        """Raise ClientError if the model cannot do what is asked."""

    def cut(self, samples: Samples) -> int:
        """Return where to cut `samples`, which are longer than a piece: a count of samples, at most a piece."""

    def prepare(self, samples: Samples, options: TranscribeOptions) -> Prepared:
        """Return one piece as the model wants it: (samples,) float32 at 16 kHz, 0 to `max_piece_frames` long."""

    def transcribe(self, batch: Sequence[Prepared]) -> list[Transcript]:
        """Return one transcript for each piece, in order. Never lets a piece's text depend on the others."""

    def rehearse(self, num_rows: int, num_frames: int) -> None:
        """Run a batch that takes as long as so many rows of speech of that length do, whatever comes out.

        The engine does so before the first request, which then finds everything allocated, and measures it.
        """

    def runs(self) -> Mapping[str, int]:
        """Return the runs so far by how they ran, from any thread: see `EncoderRuntime`; {} where there is one way."""
