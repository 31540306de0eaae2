"""Our own systems for live streams: through a tritonserver, and in process. It knows nothing of pacing or figures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

from oasr_backend.audio import Samples
from oasr_backend.benchmark.ruler import GONE, RefusedError
from oasr_backend.benchmark.systems import Server
from oasr_backend.config import EngineConfig
from oasr_backend.engine.stream import Chunk, ChunkResult, StreamRequest
from oasr_backend.engine.streaming import StreamingEngine
from oasr_backend.errors import AsrError, ConfigError
from oasr_backend.models import Family

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


class InProcessStreams:
    """The same engine without a server: what serving costs is the difference."""

    def __init__(self, name: str, family: Family, options: Any, config: EngineConfig) -> None:
        self.name = name
        self._family, self._options, self._config = family, options, config

    async def start(self) -> None:
        load, max_streams = self._family.load_streams, self._config.max_streams
        if load is None or max_streams is None:
            raise ConfigError(f"{self.name}: the model's family cannot stream: choose ctc")
        model = await asyncio.to_thread(load, self._options, max_streams)
        self._engine = StreamingEngine(self._config, model)
        await asyncio.to_thread(self._engine.warm_up)
        self._engine.start()

    def send(
        self, stream: int, number: int, samples: Samples, is_last: bool
    ) -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        def on_done(result: ChunkResult) -> None:
            loop.call_soon_threadsafe(_answer, future, result)

        try:
            if number == 0:
                self._engine.add_request(StreamRequest(str(stream)))
            self._engine.feed_chunk(str(stream), Chunk(samples, is_last), on_done)
        except AsrError as error:
            future.set_exception(RefusedError(str(error)))
        return future

    async def stop(self) -> None:
        await asyncio.to_thread(self._engine.close)


def _answer(future: asyncio.Future[str], result: ChunkResult) -> None:
    if result.partial is None:
        future.set_exception(RefusedError(str(result.error)))
    else:
        future.set_result(result.partial.transcript.text)


class _Connection:
    """One gRPC stream that carries the pieces of many sequences."""

    def __init__(self, url: str) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._task = asyncio.create_task(self._run(url))

    def send(self, request: Any) -> asyncio.Future[str]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._task.done():
            future.set_exception(RefusedError(GONE))
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
                future.set_exception(RefusedError(f"{GONE}: {error.details()}"))
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
