"""Who is measured, behind one interface: a system is started, asked for the text of samples, and stopped.

It knows nothing of arrivals or figures. Each system runs on all cores of the machine, as its own documentation says;
the ones in process share them with the generator, as the servers do.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as messages

from oasr_backend.audio import Samples
from oasr_backend.benchmark.ruler import RefusedError
from oasr_backend.config import EngineConfig
from oasr_backend.engine.job import Result, Utterance
from oasr_backend.engine.metrics import MemoryMetrics
from oasr_backend.engine.offline import OfflineEngine
from oasr_backend.errors import ConfigError
from oasr_backend.models import Family
from oasr_backend.triton.server import ServerOptions, TritonServer

METRICS_LAG_S = 0.7
"""Servers publish what they measure up to half a second later."""

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that requests have waited in queues, and how many there were."""

    seconds: float = 0.0
    requests: float = 0.0


class System(Protocol):
    """Something that transcribes, and what it is called in tables."""

    name: str

    async def start(self) -> None:
        """Load the model and be ready."""

    async def transcribe(self, samples: Samples) -> str:
        """Return the text of (samples,) float32 in ±1 at 16 kHz; raises RefusedError where there is none."""

    async def waits(self) -> Waits | None:
        """Return how long requests have waited since the start, None for a system that does not count it."""

    async def stop(self) -> None:
        """Give everything back."""


class Server:
    """A tritonserver over one model repository, on free ports, its log in a file; `prepare` makes what it needs."""

    def __init__(
        self, repository: Path, log: Path, prepare: Callable[[], object] = lambda: None
    ) -> None:
        self._repository, self._log, self._prepare = repository, log, prepare

    async def start(self) -> str:
        """Start it; return its address for gRPC once it is ready."""
        await asyncio.to_thread(self._prepare)
        options = ServerOptions(model_repositories=(str(self._repository),)).with_free_ports()
        self._file = self._log.open("wb")
        self._server = TritonServer(options, log=self._file)
        self._server.start()
        try:
            await asyncio.to_thread(self._server.wait_ready)
        except BaseException:
            self._server.kill()
            self._server.wait()
            raise
        return self._server.grpc_url

    async def waits(self) -> Waits:
        """Return what its requests have waited: in Triton's queue, and in the engine's where there is one."""
        await asyncio.sleep(METRICS_LAG_S)
        try:
            page = await asyncio.to_thread(_read, self._server.metrics_url)
        except OSError as error:
            raise ConfigError(f"the server is gone ({error}): {self._log} says why") from error
        triton_s = _total(page, "nv_inference_queue_duration_us") / 1e6
        engine_s = _total(page, "oasr_queue_wait_seconds_sum")
        return Waits(triton_s + engine_s, _total(page, "nv_inference_request_success"))

    async def stop(self) -> None:
        """Stop it, what it has accepted answered."""
        await asyncio.to_thread(self._server.stop)
        self._file.close()


class Triton:
    """A model of a tritonserver, asked through gRPC.

    It speaks Triton's protocol without tritonclient's own layer, and keeps each utterance's message: the generator
    shares the cores with what it measures.
    """

    def __init__(self, name: str, server: Server, model: str) -> None:
        self.name = name
        self._server, self._model = server, model
        # By the samples' identity, which they keep as long as they are held here.
        self._messages: dict[int, tuple[Samples, bytes]] = {}

    async def start(self) -> None:
        self._channel = grpc.aio.insecure_channel(await self._server.start(), UNLIMITED)
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            response_deserializer=messages.ModelInferResponse.FromString,
        )

    async def transcribe(self, samples: Samples) -> str:
        try:
            answer = await self._infer(await self._message(samples))
        except grpc.aio.AioRpcError as error:
            raise RefusedError(f"{error.code().name}: {error.details()}") from error
        # A string tensor is its length in four bytes, then its text.
        return bytes(answer.raw_output_contents[0][4:]).decode()

    async def _message(self, samples: Samples) -> bytes:
        if id(samples) not in self._messages:
            request = messages.ModelInferRequest(model_name=self._model)
            request.inputs.add(name="WAV", datatype="FP32", shape=[1, len(samples)])
            request.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
            request.outputs.add(name="TRANSCRIPTS")
            await self._add_contents(request, (samples, np.array(len(samples), np.int32)))
            self._messages[id(samples)] = (samples, request.SerializeToString())
        return self._messages[id(samples)][1]

    async def _add_contents(self, request: Any, tensors: Sequence[NDArray[Any]]) -> None:
        request.raw_input_contents.extend(tensor.tobytes() for tensor in tensors)

    async def waits(self) -> Waits:
        return await self._server.waits()

    async def stop(self) -> None:
        await self._channel.close()
        await self._server.stop()


class SharedMemoryTriton(Triton):
    """The same, of a client on the server's machine that leaves its tensors in system shared memory."""

    async def start(self) -> None:
        await super().start()
        self._regions: list[SharedMemory] = []
        self._register = self._channel.unary_unary(
            "/inference.GRPCInferenceService/SystemSharedMemoryRegister",
            messages.SystemSharedMemoryRegisterRequest.SerializeToString,
        )

    async def _add_contents(self, request: Any, tensors: Sequence[NDArray[Any]]) -> None:
        for tensor, place in zip(tensors, request.inputs, strict=True):
            region = SharedMemory(create=True, size=tensor.nbytes)
            self._regions.append(region)
            np.ndarray(tensor.shape, tensor.dtype, region.buf)[...] = tensor
            await self._register(
                messages.SystemSharedMemoryRegisterRequest(
                    name=region.name, key=f"/{region.name}", byte_size=tensor.nbytes
                )
            )
            place.parameters["shared_memory_region"].string_param = region.name
            place.parameters["shared_memory_byte_size"].int64_param = tensor.nbytes

    async def stop(self) -> None:
        await super().stop()
        for region in self._regions:
            region.close()
            region.unlink()


class InProcess:
    """Our engine without a server: what serving costs is the difference."""

    def __init__(self, name: str, family: Family, options: Any, config: EngineConfig) -> None:
        self.name = name
        self._family, self._options, self._config = family, options, config
        self._metrics = MemoryMetrics()
        self._numbers = count()

    async def start(self) -> None:
        recognizer = await asyncio.to_thread(self._family.load, self._options)
        self._engine = OfflineEngine(self._config, recognizer, self._metrics)
        await asyncio.to_thread(self._engine.warm_up)
        self._engine.start()

    async def transcribe(self, samples: Samples) -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def on_done(result: Result) -> None:
            loop.call_soon_threadsafe(done.set_result, result)

        self._engine.add_request(Utterance(f"request {next(self._numbers)}", samples), on_done)
        result = await done
        if result.error is not None or result.transcript is None:
            raise RefusedError(str(result.error))
        return result.transcript.text

    async def waits(self) -> Waits:
        waits_s = self._metrics.observations["oasr_queue_wait_seconds"]
        return Waits(sum(waits_s), len(waits_s))

    async def stop(self) -> None:
        await asyncio.to_thread(self._engine.close)


class Workers:
    """A library in process: requests in order of arrival, each on one of `num_workers` threads."""

    def __init__(
        self, name: str, num_workers: int, load: Callable[[], Callable[[Samples], str]]
    ) -> None:
        self.name = name
        self._num_workers, self._load = num_workers, load

    async def start(self) -> None:
        self._transcribe = await asyncio.to_thread(self._load)
        self._threads = ThreadPoolExecutor(self._num_workers)

    async def transcribe(self, samples: Samples) -> str:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._transcribe, samples)

    async def waits(self) -> None:
        return None

    async def stop(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def _total(page: str, name: str) -> float:
    """Return a metric's sum over its labels, 0 where it is not there."""
    return sum(
        float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name}{{")
    )


def sherpa_onnx(bundle: Path, num_threads: int) -> Callable[[Samples], str]:
    """Load the layout that `export_wenet.py --sherpa-onnx` writes."""
    import sherpa_onnx as sherpa

    recognizer = sherpa.OfflineRecognizer.from_wenet_ctc(
        str(bundle / "model.onnx"), str(bundle / "tokens.txt"), num_threads
    )

    def transcribe(samples: Samples) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(16000, samples)
        recognizer.decode_stream(stream)
        text: str = stream.result.text
        return text

    return transcribe


def faster_whisper(
    folder: str, num_threads: int, beam_size: int, batch_size: int
) -> Callable[[Samples], str]:
    """Load faster-whisper; with a `batch_size` above 0 its batched pipeline, which batches the pieces of one clip."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model: Any = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=num_threads)
    options: dict[str, Any] = {"beam_size": beam_size, "language": "en"}
    if batch_size:
        model = BatchedInferencePipeline(model)
        options |= {"batch_size": batch_size}

    def transcribe(samples: Samples) -> str:
        segments, _ = model.transcribe(samples, **options)
        return " ".join(segment.text.strip() for segment in segments)

    return transcribe
