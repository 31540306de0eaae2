"""What a Triton request gets back: one response, whatever becomes of its rows.

It knows nothing of queues or models. `pb_utils` is Triton's module, handed in.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from functools import partial
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


class Reply:
    """Sends a request's one response."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        """Keep what is needed of `request`, which itself must not outlive `execute()`."""
        self._pb_utils = pb_utils
        self._senders = senders
        self._sender = request.get_response_sender()
        self._output_names = tuple(request.requested_output_names())
        self._lock = threading.Lock()
        self._is_sent = False

    @property
    def wants_details(self) -> bool:
        return DETAILS in self._output_names

    def is_unwanted(self) -> bool:
        """Tell whether the client has taken the request back, or an error has answered it."""
        return self._is_sent or bool(self._sender.is_cancelled())

    def succeed(self, request_id: str, texts: Sequence[str], details: Sequence[str]) -> None:
        """Answer with a text a row, and with the details where they are wanted."""
        try:
            tensors = []
            if TRANSCRIPTS in self._output_names:
                tensors.append(self._string_tensor(TRANSCRIPTS, texts))
            if self.wants_details:
                tensors.append(self._string_tensor(DETAILS, details))
            response = self._pb_utils.InferenceResponse(output_tensors=tensors)
        except Exception as error:
            log.exception("the reply to %s could not be made", request_id)
            self.fail(ServerError(f"request {request_id}: making the reply failed: {error!r}"))
        else:
            self._send(response)

    def fail(self, error: AsrError, prefix: str = "") -> None:
        """Answer the whole request with an error; `prefix` says where it is."""
        code = getattr(self._pb_utils.TritonError, error.code)
        triton_error = self._pb_utils.TritonError(f"{prefix}{error}", code)
        self._send(self._pb_utils.InferenceResponse(error=triton_error))

    def _send(self, response: Any) -> None:
        with self._lock:
            if self._is_sent:
                return  # another row's error was the answer
            self._is_sent = True
        self._deliver(response)

    def _deliver(self, response: Any) -> None:
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._senders.send(partial(self._sender.send, response, flags=flags))

    def _string_tensor(self, name: str, texts: Sequence[str]) -> Any:
        rows = np.empty((len(texts), 1), dtype=np.object_)
        rows[:, 0] = [text.encode() for text in texts]
        return self._pb_utils.Tensor(name, rows)


class UtterancesReply(Reply):
    """Collects the results of a request's rows."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        super().__init__(pb_utils, senders, request)
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


class ChunkReply(Reply):
    """Answers a chunk: from `execute()` itself where the answer is there by its end, which costs Triton less."""

    def __init__(self, pb_utils: Any, senders: Senders, request: Any) -> None:
        super().__init__(pb_utils, senders, request)
        self._in_execute = True
        self._early_response: Any = None
        self._leaving = threading.Lock()

    def set_result(self, result: ChunkResult) -> None:
        """Answer with what became of the chunk."""
        if result.error is not None:
            self.fail(result.error)
            return
        assert result.partial is not None, "no error, so there is a text"
        details = [chunk_details_json(result)] if self.wants_details else []
        self.succeed(result.stream_id, [result.partial.transcript.text], details)

    def end_of_execute(self) -> Any:
        """Return the response where it is there, to be returned to Triton; None where it will be sent."""
        with self._leaving:
            self._in_execute = False
            return self._early_response

    def _deliver(self, response: Any) -> None:
        with self._leaving:
            if self._in_execute:
                self._early_response = response
                return
        super()._deliver(response)


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
