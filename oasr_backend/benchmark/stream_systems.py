"""Systems for live streams: a tritonserver, and sherpa-onnx in process. It knows nothing of pacing or figures."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

from oasr_backend.audio import Samples
from oasr_backend.benchmark.ruler import RefusedError
from oasr_backend.benchmark.systems import Server
from oasr_backend.errors import ConfigError

STREAMS_A_CONNECTION = 32
CONNECT_TIMEOUT_S = 10.0


class TritonStreams:
    """`asr_streaming` of a server that runs.

    It speaks Triton's protocol without tritonclient's own layer: the generator shares the cores with what it measures.
    """

    def __init__(self, name: str, server: Server | str, model: str) -> None:
        """Stream to a model of `server`: one to be started, or the gRPC address of one that runs."""
        self.name = name
        self._server, self._model = server, model
        self._ids = count(random.getrandbits(40) << 20)  # no other client's
        self._sequences: dict[int, int] = {}
        self._connections: dict[int, _Connection] = {}

    async def start(self) -> None:
        server = self._server
        self._url = server if isinstance(server, str) else await server.start()
        async with grpc.aio.insecure_channel(self._url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            try:
                await stub.ServerReady(messages.ServerReadyRequest(), timeout=CONNECT_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise ConfigError(
                    f"no Triton server answers at {self._url} ({error.code().name}): start one, or correct --url"
                ) from error

    def send(
        self, stream: int, number: int, samples: Samples, is_last: bool
    ) -> asyncio.Future[str]:
        if number == 0:
            self._sequences[stream] = next(self._ids)
        sequence_id = self._sequences[stream]
        request = messages.ModelInferRequest(model_name=self._model, id=f"{sequence_id}/{number}")
        request.parameters["sequence_id"].int64_param = sequence_id
        request.parameters["sequence_start"].bool_param = number == 0
        request.parameters["sequence_end"].bool_param = is_last
        request.inputs.add(name="WAV", datatype="FP32", shape=[1, len(samples)])
        request.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
        request.outputs.add(name="TRANSCRIPTS")
        request.raw_input_contents.append(samples.tobytes())
        request.raw_input_contents.append(np.int32(len(samples)).tobytes())
        place = stream // STREAMS_A_CONNECTION
        if place not in self._connections:
            self._connections[place] = _Connection(self._url)
        return self._connections[place].send(request)

    async def stop(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()
        if isinstance(self._server, Server):
            await self._server.stop()


class _Connection:
    """One gRPC stream that carries the pieces of many sequences."""

    def __init__(self, url: str) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._task = asyncio.create_task(self._run(url))

    def send(self, request: Any) -> asyncio.Future[str]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._task.done():
            future.set_exception(RefusedError("the connection is gone"))
            return future
        self._waiting[request.id] = future
        self._requests.put_nowait(request)
        return future

    async def close(self) -> None:
        self._requests.put_nowait(None)
        await self._task

    async def _run(self, url: str) -> None:
        try:
            await self._exchange(url)
        except grpc.aio.AioRpcError as error:
            for future in self._waiting.values():
                future.set_exception(RefusedError(f"the connection is gone: {error.details()}"))
            self._waiting.clear()

    async def _exchange(self, url: str) -> None:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            async for answer in stub.ModelStreamInfer(self._take_requests()):
                future = self._waiting.pop(answer.infer_response.id)
                if answer.error_message:
                    future.set_exception(RefusedError(answer.error_message))
                else:
                    # The text of BYTES follows its length in four bytes.
                    future.set_result(answer.infer_response.raw_output_contents[0][4:].decode())

    async def _take_requests(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request


class SherpaStreams:
    """sherpa-onnx's online recognizer on some threads, each with its share of the streams."""

    def __init__(
        self, name: str, folder: Path, num_workers: int, chunk_size: int, left: int
    ) -> None:
        self.name = name
        self._folder, self._chunking = folder, (chunk_size, left)
        self._workers = [_SherpaWorker() for _ in range(num_workers)]

    async def start(self) -> None:
        for worker in self._workers:
            await asyncio.to_thread(worker.start, self._folder, *self._chunking)

    def send(
        self, stream: int, number: int, samples: Samples, is_last: bool
    ) -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        worker = self._workers[stream % len(self._workers)]

        def answer(text: str) -> None:
            loop.call_soon_threadsafe(future.set_result, text)

        worker.inbox.put((stream, number, samples, is_last, answer))
        return future

    async def stop(self) -> None:
        for worker in self._workers:
            worker.inbox.put(None)
            await asyncio.to_thread(worker.thread.join)


class _SherpaWorker:
    """One thread: it takes all pieces that have come, then decodes what is ready."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[tuple[int, int, Samples, bool, Callable[[str], None]] | None] = (
            SimpleQueue()
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._streams: dict[int, Any] = {}

    def start(self, folder: Path, chunk_size: int, left: int) -> None:
        import sherpa_onnx as sherpa

        self._recognizer = sherpa.OnlineRecognizer.from_wenet_ctc(
            str(folder / "tokens.txt"),
            str(folder / "model-streaming.onnx"),
            chunk_size=chunk_size,
            num_left_chunks=left,
            num_threads=1,
        )
        self.thread.start()

    def _run(self) -> None:
        while (first := self.inbox.get()) is not None:
            pieces = [first]
            while not self.inbox.empty():
                piece = self.inbox.get()
                if piece is None:
                    self.inbox.put(None)  # to be found by the outer loop
                    break
                pieces.append(piece)
            fed = [self._feed(*piece[:4]) for piece in pieces]
            while ready := [s for s in dict.fromkeys(fed) if self._recognizer.is_ready(s)]:
                self._recognizer.decode_streams(ready)
            for piece, stream in zip(pieces, fed, strict=True):
                piece[4](self._recognizer.get_result(stream))

    def _feed(self, stream: int, number: int, samples: Samples, is_last: bool) -> Any:
        if number == 0:
            self._streams[stream] = self._recognizer.create_stream()
        handle = self._streams[stream]
        handle.accept_waveform(16000, samples)
        if is_last:
            handle.input_finished()
        return handle
