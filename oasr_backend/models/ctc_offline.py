"""Whole utterances through a CTC model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.decode.ctc import LogProbs
from oasr_backend.features.fbank import num_frames as num_frames_of
from oasr_backend.models.base import Prepared, TranscribeOptions, Transcript
from oasr_backend.models.ctc import CtcConfig, CtcModel
from oasr_backend.request import FRAMES_PER_SECOND
from oasr_backend.runtime.base import EncoderRuntime
from oasr_backend.runtime.graphs import next_above
from oasr_backend.spans import span
from oasr_backend.vad import SpeechDetector

HOP_SAMPLES = SAMPLE_RATE_HZ // FRAMES_PER_SECOND


class CtcRecognizer:
    """Transcribes batches of whole utterances.

    Features are made with the batch, in the thread that runs it: a thread of their own would only take its core from
    another batch.
    """

    fixed_window_frames: int | None = None
    prepares_at_once = True

    def __init__(self, config: CtcConfig, runtime: EncoderRuntime | None = None) -> None:
        """Load the bundle; raises ConfigError where it cannot."""
        self._model = CtcModel(config, runtime)
        self.parallel_batches = self._model.runtime.parallel_batches
        self._detector = SpeechDetector()
        self.max_piece_frames = round(config.max_piece_s * FRAMES_PER_SECOND)
        # Made here, since making it takes as long as a good part of a batch, and rehearsals are measured.
        noise = np.random.default_rng(0).normal(size=self.max_piece_frames * HOP_SAMPLES)
        self._noise = (0.01 * noise).astype(np.float32)

    def window_frames(self, num_frames: int) -> int:
        """Return what it is padded to, if anything."""
        return next_above(self._model.runtime.buckets_frames, num_frames)

    def check_options(self, options: TranscribeOptions) -> None:
        self._model.check_options(options)

    def cut(self, samples: Samples) -> int:
        """Return where to cut `samples`: in a silence of the second half of a piece."""
        return self._detector.cut_point(samples, self.max_piece_frames * HOP_SAMPLES)

    def prepare(self, samples: Samples, options: TranscribeOptions) -> Prepared:
        """Return one piece; one too short for an encoder frame has no speech."""
        num_frames = -(-len(samples) // HOP_SAMPLES)
        has_speech = self._model.bundle.encoder_frames(num_frames_of(len(samples))) > 0
        speech_frames = None
        if options.speech_frames and has_speech:
            speech_frames = round(self._detector.speech_seconds(samples) * FRAMES_PER_SECOND)
        return Prepared(samples, num_frames, options, has_speech, speech_frames)

    def transcribe(self, batch: Sequence[Prepared]) -> list[Transcript]:
        """Return one transcript for each piece, in order."""
        log_probs, encoded_lengths = self._model.runtime.encode(
            [piece.inputs for piece in batch], self._chunk_size(), self._num_left_chunks()
        )
        with span("decode"):
            return [
                self._decode(row[:length], piece.options.words)
                for row, length, piece in zip(log_probs, encoded_lengths, batch, strict=True)
            ]

    def rehearse(self, num_rows: int, num_frames: int) -> None:
        """Run noise: what a CTC model takes does not depend on what is said."""
        piece = self.prepare(self._noise[: num_frames * HOP_SAMPLES], TranscribeOptions())
        if piece.has_speech:
            self.transcribe([piece] * num_rows)

    def runs(self) -> Mapping[str, int]:
        return self._model.runtime.runs()

    def _chunk_size(self) -> int:
        return self._model.config.decoding_chunk_size or self._model.bundle.offline_chunk_size

    def _num_left_chunks(self) -> int:
        asked = self._model.config.num_left_chunks
        return -1 if asked is None else asked

    def _decode(self, log_probs: LogProbs, words: bool) -> Transcript:
        decoder = self._model.new_decoder()
        decoder.advance(log_probs)
        return self._model.transcript(decoder.best(), words)
