"""Streams as a client sends them: chunks of a sequence over gRPC, and what came back for each."""

from __future__ import annotations

import itertools
import json
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

CHUNK_SAMPLES = 2560
_ids = itertools.count(1)


@dataclass(frozen=True)
class ChunkAnswer:
    """A reply to a chunk: its text and details, or its error."""

    text: str | None
    details: dict[str, Any]
    error: str | None


class StreamClient:
    """Sends streams to one model; every stream is a gRPC stream of its own."""

    def __init__(self, server: Any, model: str = "asr_streaming") -> None:
        self.url, self.model = server.grpc_url, model

    def begin(self, stream_id: int | str | None = None, **parameters: Any) -> Stream:
        """Return a stream that has sent nothing yet."""
        return Stream(self, next(_ids) if stream_id is None else stream_id, parameters)

    def text(self, samples: np.ndarray, chunk: int = CHUNK_SAMPLES, **parameters: Any) -> str:
        """Send a whole clip in chunks, one after the other's answer, and return its final text."""
        with self.begin(**parameters) as stream:
            return stream.send_all(samples, chunk).text


class Stream:
    """One stream; `send` waits for the answer, `post` does not."""

    def __init__(
        self, client: StreamClient, stream_id: int | str, parameters: dict[str, Any]
    ) -> None:
        self.id = stream_id
        self._parameters = parameters
        self._model = client.model
        self._answers: queue.SimpleQueue[ChunkAnswer] = queue.SimpleQueue()
        self._is_first = True
        self._triton = grpcclient.InferenceServerClient(client.url)
        self._triton.start_stream(lambda result, error: self._answers.put(_answer(result, error)))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._triton.stop_stream(cancel_requests=True)
        self._triton.close()

    def post(
        self,
        samples: np.ndarray | Sequence[float] = (),
        *,
        end: bool = False,
        start: bool | None = None,
        details: bool = True,
    ) -> None:
        """Send a chunk; the first one begins the stream."""
        inputs = chunk_inputs(np.asarray(samples, np.float32))
        names = ["TRANSCRIPTS", *(["DETAILS"] if details else [])]
        self._triton.async_stream_infer(
            self._model,
            inputs,
            outputs=[grpcclient.InferRequestedOutput(name) for name in names],
            sequence_id=self.id,
            sequence_start=self._is_first if start is None else start,
            sequence_end=end,
            parameters=self._parameters or None,
        )
        self._is_first = False

    def answer(self, timeout_s: float = 60.0) -> ChunkAnswer:
        """Return the next answer."""
        return self._answers.get(timeout=timeout_s)

    def send(self, samples: np.ndarray | Sequence[float] = (), **flags: Any) -> ChunkAnswer:
        """Send a chunk and return its answer."""
        self.post(samples, **flags)
        return self.answer()

    def send_all(self, samples: np.ndarray, chunk: int = CHUNK_SAMPLES) -> ChunkAnswer:
        """Send a clip in chunks and return the answer to the last one."""
        starts = range(0, max(1, len(samples)), chunk)
        for start in starts:
            answer = self.send(samples[start : start + chunk], end=start == starts[-1])
            assert answer.error is None, answer.error
        return answer


def chunk_inputs(samples: np.ndarray) -> list[Any]:
    wav = grpcclient.InferInput("WAV", [1, len(samples)], "FP32")
    wav.set_data_from_numpy(samples[None, :])
    length = grpcclient.InferInput("WAV_LENS", [1, 1], "INT32")
    length.set_data_from_numpy(np.array([[len(samples)]], np.int32))
    return [wav, length]


def _answer(result: Any, error: Any) -> ChunkAnswer:
    if error is not None:
        return ChunkAnswer(None, {}, str(error))
    details = result.as_numpy("DETAILS")
    return ChunkAnswer(
        result.as_numpy("TRANSCRIPTS")[0, 0].decode(),
        {} if details is None else json.loads(details[0, 0]),
        None,
    )
