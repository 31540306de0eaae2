"""Whisper through CTranslate2: one encoder call and one decoder call for a whole batch.

It knows nothing of requests or queues. Every row is computed as if it were alone: its window and whether it gets a
second try follow from its own audio only, and second tries run alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ctranslate2
import numpy as np

from oasr_backend.audio import amplified
from oasr_backend.cores import num_cores
from oasr_backend.errors import ClientError, ConfigError, shown
from oasr_backend.features.log_mel import HOP_SAMPLES, WINDOW_FRAMES, log_mel, padded
from oasr_backend.models.base import (
    FRAMES_PER_SECOND,
    Prepared,
    Samples,
    TranscribeOptions,
    Transcript,
    Word,
)
from oasr_backend.models.whisper_config import WhisperConfig as WhisperConfig
from oasr_backend.models.whisper_folder import find_model
from oasr_backend.models.whisper_vocabulary import Vocabulary
from oasr_backend.models.whisper_words import compression_ratio, ends_in_repetition, timed_words
from oasr_backend.spans import span
from oasr_backend.vad import MIN_SPEECH_S, SpeechDetector

LOGGER = logging.getLogger(__name__)

TASKS = ("transcribe", "translate")

MIN_SPEECH_SAMPLES = 400
"""25 ms, one frame of the spectrogram: in less than that nobody says anything."""

MAX_COMPRESSION_RATIO = 2.4
MIN_MEAN_LOG_PROBABILITY = -1.0
MAX_NO_SPEECH_PROBABILITY = 0.6
"""The thresholds of openai/whisper `transcribe.py`: a text that zlib shrinks further than this repeats itself; one less
probable than this is doubtful, and nothing but silence where the model also says so."""

SECOND_TRY: Final = {"no_repeat_ngram_size": 4, "repetition_penalty": 1.1}
"""Where Whisper samples at a higher temperature, we forbid the repetition: the same audio gives the same text."""

TYPICAL_TOKENS_PER_SECOND = 3.5
"""86 tokens in the 24.7 s of read English in tests/data/librivox."""

MAX_TOKENS = 224
"""Half of the decoder's context: Whisper's own limit for the text of a window."""

MIN_TOKENS = 16
MAX_TOKENS_PER_SECOND = 20

SHORT_WINDOWS = (800, 1000, 1500, 2000)
SHORT_WINDOW_MARGIN_FRAMES = 250
MIN_SHORT_WINDOW_CLIP_FRAMES = 250
MIN_SHORT_WINDOW_LOG_PROBABILITY = -0.3
"""Measured with tiny.en on 12 clips, each in 9 versions (noise, speed, telephone, silence around): a clip needs silence
after it, or the decoder does not find its end; clips below 2.5 s nearly always needed the full window after all; with
every text below this probability tried again, as many words were wrong as with the full window alone (6.2 %)."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """What the decoder made of one row, and where its encoding is, for an alignment."""

    tokens: list[int]
    mean_log_probability: float
    no_speech_probability: float
    repeats: bool
    encoded: Any
    row: int

    @property
    def silent(self) -> bool:
        improbable = self.mean_log_probability < MIN_MEAN_LOG_PROBABILITY
        return improbable and self.no_speech_probability > MAX_NO_SPEECH_PROBABILITY


class WhisperRecognizer:
    """A loaded Whisper model; a Recognizer of `models/base.py`."""

    max_piece_frames = WINDOW_FRAMES
    fixed_window_frames: int | None
    prepares_at_once = False

    def __init__(
        self, config: WhisperConfig | None = None, detector: SpeechDetector | None = None
    ) -> None:
        """Load the model. Raises ConfigError where it cannot be found or loaded."""
        self.config = config or WhisperConfig()
        self.fixed_window_frames = None if self.config.short_window else WINDOW_FRAMES
        folder = find_model(self.config.model_dir)
        self.vocabulary = Vocabulary.load(folder)
        self._detector = detector or SpeechDetector()
        self._model = _load(str(folder), self.config)
        self.parallel_batches = int(self._model.num_workers)
        self._num_mels = int(self._model.n_mels)
        self._nothing = np.zeros((self._num_mels, 0), np.float32)
        self._can_align = "alignment_heads" in json.loads(
            (folder / "config.json").read_text("utf-8")
        )
        if not self._can_align:
            LOGGER.warning(
                "%s/config.json has no alignment_heads, so no words with times: convert the model again",
                folder,
            )

    @property
    def languages(self) -> tuple[str, ...]:
        """The language codes that a client may ask for."""
        return self.vocabulary.languages if self._model.is_multilingual else ("en",)

    def check_options(self, options: TranscribeOptions) -> None:
        """Raise ClientError where this model knows not the language or the task."""
        if options.task not in TASKS:
            raise ClientError(
                f"task is {shown(options.task)}; allowed are {' and '.join(TASKS)}: choose one of them"
            )
        if options.task == "translate" and not self._model.is_multilingual:
            raise ClientError(
                "task is 'translate', but the model is English-only and can only transcribe: leave task out, or "
                "serve a multilingual model (model_dir)"
            )
        if options.language is not None and options.language not in self.languages:
            raise ClientError(self._unknown_language(options.language))

    def cut(self, samples: Samples) -> int:
        """Return where to cut `samples`, longer than 30 s: in a silence of its second 15 s."""
        return self._detector.cut_point(samples, WINDOW_FRAMES * HOP_SAMPLES)

    def prepare(self, samples: Samples, options: TranscribeOptions) -> Prepared:
        """Return the features of one piece, (samples,) float32 at 16 kHz of at most 30 s."""
        num_frames = -(-len(samples) // HOP_SAMPLES)
        has_speech, speech_frames = self._find_speech(samples, options.speech_frames)
        if not has_speech:
            return Prepared(self._nothing, num_frames, options, has_speech=False)
        with span("features"):
            features = log_mel(amplified(samples), self._num_mels)
        return Prepared(features, num_frames, options, speech_frames=speech_frames)

    def window_frames(self, num_frames: int) -> int:
        """Return the frames that a piece of `num_frames` costs: the window that it is encoded in."""
        if not self.config.short_window or num_frames < MIN_SHORT_WINDOW_CLIP_FRAMES:
            return WINDOW_FRAMES
        needed = num_frames + SHORT_WINDOW_MARGIN_FRAMES
        return next((window for window in SHORT_WINDOWS if window >= needed), WINDOW_FRAMES)

    def transcribe(self, batch: Sequence[Prepared]) -> list[Transcript]:
        """Return a transcript for each piece. Pieces of one window share one encoder and one decoder call."""
        results: dict[int, Transcript] = {}
        windows = [self.window_frames(piece.num_frames) for piece in batch]
        for window in sorted(set(windows)):
            rows = [index for index, own in enumerate(windows) if own == window]
            transcripts = self._transcribe_window([batch[index] for index in rows], window)
            results.update(zip(rows, transcripts, strict=True))
        return [results[index] for index in range(len(batch))]

    def rehearse(self, num_rows: int, num_frames: int) -> None:
        """Run silence, and have the decoder write as many tokens as speech of that length has.

        Time depends on the number of tokens, not on which they are: six seconds rehearsed took 0.46 s, a clip of that
        length with 21 tokens 0.46 s. What ends a text is suppressed, so that the number is certain.
        """
        silence = Prepared(self._nothing, num_frames, TranscribeOptions())
        encoded = self._encode([silence] * num_rows, self.window_frames(num_frames))
        languages = self._languages(encoded, [silence] * num_rows)
        num_tokens = round(TYPICAL_TOKENS_PER_SECOND * num_frames / FRAMES_PER_SECOND)
        self._generate(
            encoded,
            [self._prompt(language, "transcribe") for language in languages],
            # CTranslate2 takes half of it for the text.
            max_length=2 * min(MAX_TOKENS, max(1, num_tokens)),
            # -1 stands for those that the model always suppresses.
            suppress_tokens=[-1, self.vocabulary.end],
        )

    def runs(self) -> dict[str, int]:
        return {}

    def _find_speech(self, samples: Samples, count: bool) -> tuple[bool, int | None]:
        """Return whether somebody speaks and, where that is wanted and the detector is on, for how many frames."""
        if len(samples) < MIN_SPEECH_SAMPLES:
            return False, None
        if not self.config.vad_filter:
            return True, None
        threshold = self.config.vad_threshold
        if not count:
            return self._detector.has_speech(samples, threshold), None
        speech_s = self._detector.speech_seconds(samples, threshold)
        return speech_s >= MIN_SPEECH_S, round(speech_s * FRAMES_PER_SECOND)

    def _transcribe_window(self, pieces: Sequence[Prepared], window: int) -> list[Transcript]:
        encoded = self._encode(pieces, window)
        languages = self._languages(encoded, pieces)
        prompts = [
            self._prompt(language, piece.options.task)
            for language, piece in zip(languages, pieces, strict=True)
        ]
        drafts = self._generate(encoded, prompts)
        for row, draft in enumerate(drafts):
            if draft.repeats or (window < WINDOW_FRAMES and self._doubts_short(draft)):
                drafts[row] = self._try_again(pieces[row], prompts[row], draft)
        return [
            self._transcript(draft, piece, prompt, language)
            for draft, piece, prompt, language in zip(
                drafts, pieces, prompts, languages, strict=True
            )
        ]

    def _encode(self, pieces: Sequence[Prepared], window: int) -> Any:
        features = np.stack([padded(piece.inputs, window) for piece in pieces])
        with span("forward"):
            return self._model.encode(ctranslate2.StorageView.from_array(features))

    def _languages(self, encoded: Any, pieces: Sequence[Prepared]) -> list[str]:
        """Return what each piece is spoken in: what the client says, else the most probable language."""
        asked = [piece.options.language for piece in pieces]
        if not self._model.is_multilingual:
            return ["en"] * len(pieces)
        if None not in asked:
            return [language for language in asked if language is not None]
        detected = self._model.detect_language(encoded)
        return [
            language or ranking[0][0].strip("<|>")
            for language, ranking in zip(asked, detected, strict=True)
        ]

    def _prompt(self, language: str, task: str) -> list[int]:
        if not self._model.is_multilingual:
            return [self.vocabulary.start, self.vocabulary.no_timestamps]
        special = self.vocabulary.special
        return [
            self.vocabulary.start,
            special(f"<|{language}|>"),
            special(f"<|{task}|>"),
            self.vocabulary.no_timestamps,
        ]

    def _generate(self, encoded: Any, prompts: list[list[int]], **settings: Any) -> list[_Draft]:
        with span("decode"):
            results = self._model.generate(
                encoded,
                prompts,
                beam_size=self.config.beam_size,
                return_scores=True,
                return_no_speech_prob=True,
                **settings,
            )
        return [self._draft(result, encoded, row) for row, result in enumerate(results)]

    def _draft(self, result: Any, encoded: Any, row: int) -> _Draft:
        tokens = self.vocabulary.without_specials(result.sequences_ids[0])
        num_scored = len(result.sequences_ids[0])
        # The score is a mean over the tokens without the end of the text, whose probability is in the sum.
        mean_log_probability = result.scores[0] * num_scored / (num_scored + 1)
        repeats = compression_ratio(self.vocabulary.text(tokens)) > MAX_COMPRESSION_RATIO
        return _Draft(tokens, mean_log_probability, result.no_speech_prob, repeats, encoded, row)

    def _doubts_short(self, draft: _Draft) -> bool:
        """Return whether a draft from a short window needs the full one: Whisper likes to say all twice there."""
        improbable = draft.mean_log_probability < MIN_SHORT_WINDOW_LOG_PROBABILITY
        return improbable or ends_in_repetition(self.vocabulary.text(draft.tokens))

    def _try_again(self, piece: Prepared, prompt: list[int], draft: _Draft) -> _Draft:
        """Return the better of `draft` and what the piece gives alone, in the full window, without repetition."""
        encoded = self._encode([piece], WINDOW_FRAMES)
        attempts = []
        if self.window_frames(piece.num_frames) < WINDOW_FRAMES:
            attempts += self._generate(encoded, [prompt])
            draft = attempts[
                0
            ]  # the full window is what the model knows, however sure it was in the short one
        if all(attempt.repeats for attempt in attempts):
            # CTranslate2 takes half of max_length for the text.
            attempts += self._generate(
                encoded, [prompt], max_length=2 * _max_tokens(piece), **SECOND_TRY
            )
        return max(
            [*attempts, draft], key=lambda each: (not each.repeats, each.mean_log_probability)
        )

    def _transcript(
        self, draft: _Draft, piece: Prepared, prompt: list[int], language: str
    ) -> Transcript:
        text = self.vocabulary.text(draft.tokens).strip()
        if draft.silent or not text:
            return Transcript("", language=language)
        wants_words = piece.options.words and self._can_align
        words = self._words(draft, piece, prompt, language) if wants_words else ()
        confidence = float(np.exp(min(0.0, draft.mean_log_probability)))
        return Transcript(text, tuple(draft.tokens), words, confidence, language)

    def _words(
        self, draft: _Draft, piece: Prepared, prompt: list[int], language: str
    ) -> tuple[Word, ...]:
        """Align one row, alone, so that its times do not depend on its batch."""
        num_frames = max(2, piece.inputs.shape[1])
        [alignment] = self._model.align(
            _row(draft.encoded, draft.row), prompt[:-1], [draft.tokens], num_frames
        )
        groups = self.vocabulary.words(draft.tokens, language)
        duration_s = piece.num_frames / FRAMES_PER_SECOND
        return timed_words(groups, alignment.alignments, alignment.text_token_probs, duration_s)

    def _unknown_language(self, language: str) -> str:
        if not self._model.is_multilingual:
            return (
                f"language is {shown(language)}, but the model is English-only: leave language out or set it to "
                "'en', or serve a multilingual model (model_dir)"
            )
        return (
            f"language is {shown(language)}; allowed are the codes {', '.join(self.languages)}: choose one of them, or "
            "leave language out to have it detected"
        )


def _max_tokens(piece: Prepared) -> int:
    """Return more tokens than anybody can say in the time, in any language: what bounds a loop in a second try."""
    return min(
        MAX_TOKENS, MIN_TOKENS + MAX_TOKENS_PER_SECOND * piece.num_frames // FRAMES_PER_SECOND
    )


def _row(encoded: Any, row: int) -> Any:
    """Return one row of an encoded batch, as a batch of one."""
    if encoded.shape[0] == 1:
        return encoded
    on_host = encoded.to_device(ctranslate2.Device.cpu) if encoded.device != "cpu" else encoded
    rows = np.asarray(on_host.to(ctranslate2.DataType.float32))
    return ctranslate2.StorageView.from_array(np.ascontiguousarray(rows[row : row + 1]))


def _load(folder: str, config: WhisperConfig) -> Any:
    device = config.device
    if device == "auto":
        device = "cuda" if ctranslate2.get_cuda_device_count() > 0 else "cpu"
    compute_type = config.compute_type
    if compute_type == "auto":
        compute_type = "int8" if device == "cpu" else "float16"
    num_threads = config.intra_threads or num_cores()
    try:
        return ctranslate2.models.Whisper(
            folder,
            device=device,
            compute_type=compute_type,
            intra_threads=num_threads,
            # For batches side by side; they share the weights.
            inter_threads=max(1, num_cores() // num_threads) if device == "cpu" else 1,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the Whisper model in {folder} cannot be loaded on device {device!r} with compute_type "
            f"{compute_type!r}: {error}: correct device or compute_type ('auto' takes what is there), or model_dir"
        ) from error
