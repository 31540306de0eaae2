"""What a Triton request gets back: one response, whatever becomes of its rows.

It knows nothing of queues or models. `pb_utils` is Triton's module, handed in.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from oasr_backend.engine.job import Result
from oasr_backend.engine.stream import ChunkResult
from oasr_backend.errors import AsrError, ServerError
from oasr_backend.models.base import Transcript, Word
from oasr_backend.triton.senders import Senders

log = logging.getLogger(__name__)

TRANSCRIPTS = "TRANSCRIPTS"
DETAILS = "DETAILS"

MAX_KEPT = 1024
MAX_KEPT_LENGTH = 256
"""Characters of a text whose tensor is kept: a few hundred kilobytes of shared memory in all."""


class Reply:
    """Sends a request's one response."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        """Keep what is needed of `request`, which itself must not outlive `execute()`."""
        self._pb_utils = pb_utils
        self._senders = senders
        self._sender: Any = None
        self._output_names = tuple(request.requested_output_names())
        self._lock = threading.Lock()
        self._is_sent = False

    @property
    def wants_details(self) -> bool:
        return DETAILS in self._output_names

    def is_unwanted(self) -> bool:
        """Tell whether the client has taken the request back, or an error has answered it."""
        return self._is_sent or (self._sender is not None and bool(self._sender.is_cancelled()))

    def succeed(self, request_id: str, texts: Sequence[str], details: Sequence[str]) -> None:
        """Answer with a text a row, and with the details where they are wanted."""
        try:
            response = self._response(string_tensor(self._pb_utils, TRANSCRIPTS, texts), details)
        except Exception as error:
            log.exception("the reply to %s could not be made", request_id)
            response = self._unmade(request_id, error)
        self._send(response)

    def fail(self, error: AsrError, prefix: str = "") -> None:
        """Answer the whole request with an error; `prefix` says where it is."""
        self._send(self._error_response(error, prefix))

    def _response(self, transcripts: Any, details: Sequence[str]) -> Any:
        """Return a response of the tensors that were asked for."""
        tensors = []
        if TRANSCRIPTS in self._output_names:
            tensors.append(transcripts)
        if self.wants_details:
            tensors.append(string_tensor(self._pb_utils, DETAILS, details))
        return self._pb_utils.InferenceResponse(output_tensors=tensors)

    def _error_response(self, error: AsrError, prefix: str = "") -> Any:
        code = getattr(self._pb_utils.TritonError, error.code)
        triton_error = self._pb_utils.TritonError(f"{prefix}{error}", code)
        return self._pb_utils.InferenceResponse(error=triton_error)

    def _unmade(self, request_id: str, error: Exception) -> Any:
        text = f"request {request_id}: making the reply failed: {error!r}"
        return self._error_response(ServerError(text))

    def _send(self, response: Any) -> None:
        with self._lock:
            if self._is_sent:
                return  # another row's error was the answer
            self._is_sent = True
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._senders.send(partial(self._sender.send, response, flags=flags))


def string_tensor(pb_utils: Any, name: str, texts: Sequence[str]) -> Any:
    """Return a tensor of a text a row: (texts, 1)."""
    rows = np.empty((len(texts), 1), dtype=np.object_)
    rows[:, 0] = [text.encode() for text in texts]
    return pb_utils.Tensor(name, rows)


class UtterancesReply(Reply):
    """Collects the results of a request's rows."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        super().__init__(pb_utils, senders, request)
        self._sender = request.get_response_sender()
        self._results: list[Result | None] = []

    def expect(self, num_rows: int) -> None:
        """Say how many rows the response has."""
        self._results = [None] * num_rows

    def set_result(self, row: int, result: Result) -> None:
        """Take one row's result; the last one, or the first error, sends the response."""
        if result.error is not None:
            prefix = f"row {row}: " if len(self._results) > 1 else ""
            self.fail(result.error, prefix)
            return
        self._results[row] = result
        results = [r for r in self._results if r is not None]
        if len(results) < len(self._results):
            return
        texts = [r.transcript.text for r in results if r.transcript is not None]
        details = [details_json(r) for r in results] if self.wants_details else []
        self.succeed(result.request_id, texts, details)


class KeptTexts:
    """Tensors of texts, kept for the next piece that changes nothing: of one stream's pieces those are most.

    Triton writes a tensor to shared memory when its first response is sent, unguarded, and the next responses have it
    there: so all of them must be sent by one thread.
    """

    def __init__(self, pb_utils: Any) -> None:
        self._pb_utils = pb_utils
        self._kept = lru_cache(MAX_KEPT)(self._new)

    def tensor(self, text: str) -> Any:
        """Return the tensor of one text."""
        return self._kept(text) if len(text) <= MAX_KEPT_LENGTH else self._new(text)

    def _new(self, text: str) -> Any:
        return string_tensor(self._pb_utils, TRANSCRIPTS, [text])


class ChunkReply(Reply):
    """Answers a chunk: from `execute()` itself where the answer is there by its end, which costs Triton less."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        super().__init__(pb_utils, senders, request)
        self._in_execute = True
        self._early_result: ChunkResult | None = None
        self._leaving = threading.Lock()

    def set_result(self, result: ChunkResult) -> None:
        """Answer with what became of the chunk; what comes after the first result is no answer."""
        with self._leaving:
            if self._early_result is not None:
                return
            if self._in_execute:
                self._early_result = result
                return
        if result.error is not None:
            self.fail(result.error)
            return
        self.succeed(result.stream_id, [_text_of(result)], self._details_of(result))

    def end_of_execute(self, request: Any, texts: KeptTexts) -> Any:
        """Return the response where it is there, to be returned to Triton; None where it will be sent.

        By the thread that runs `execute()`.
        """
        with self._leaving:
            self._in_execute = False
            if self._early_result is None:
                self._sender = request.get_response_sender()
                return None
        result, self._is_sent = self._early_result, True
        if result.error is not None:
            return self._error_response(result.error)
        try:
            return self._response(texts.tensor(_text_of(result)), self._details_of(result))
        except Exception as error:
            log.exception("the reply to %s could not be made", result.stream_id)
            return self._unmade(result.stream_id, error)

    def _details_of(self, result: ChunkResult) -> list[str]:
        return [chunk_details_json(result)] if self.wants_details else []


def _text_of(result: ChunkResult) -> str:
    assert result.partial is not None, "no error, so there is a text"
    return result.partial.transcript.text


def details_json(result: Result) -> str:
    """Return the DETAILS of one utterance as JSON; times in seconds."""
    transcript = result.transcript
    assert transcript is not None, "an error has no details"
    details = {
        **_spoken(transcript),
        "duration_s": round(result.duration_s, 4),
        "queue_s": round(result.queue_s, 4),
        "compute_s": round(result.compute_s, 4),
        "batch_sizes": list(result.batch_sizes),
    }
    return json.dumps(details, ensure_ascii=False)


def chunk_details_json(result: ChunkResult) -> str:
    """Return the DETAILS of a stream so far as JSON; times in seconds from the stream's start."""
    partial = result.partial
    assert partial is not None, "an error has no details"
    details = {
        **_spoken(partial.transcript),
        "stable_text": partial.transcript.text if result.is_final else partial.stable_text,
        "is_final": result.is_final,
        "finish_reason": result.finish_reason,
        "duration_s": round(result.duration_s, 4),
        "latency_s": round(result.latency_s, 4),
        "encoder_chunks": result.num_encoder_chunks,
    }
    return json.dumps(details, ensure_ascii=False)


def _spoken(transcript: Transcript) -> dict[str, Any]:
    return {
        "text": transcript.text,
        "language": transcript.language,
        "confidence": round(transcript.confidence, 4),
        "words": [_word(word) for word in transcript.words],
        "tokens": list(transcript.tokens),
    }


def _word(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start_s": round(word.start_s, 3),
        "end_s": round(word.end_s, 3),
        "confidence": round(word.confidence, 4),
    }
