#!/usr/bin/env python3
"""Load a running server with live streams, each paced as a microphone paces it, and say how long their text takes.

    .venv/bin/python scripts/load_streams.py --streams 50 100 200 --seconds 20

Latency counts from the sending of the samples that complete an encoder chunk to the reply that holds its text. Every
stream starts at a time of its own, sends speech in pieces of --piece-ms, and ends with END.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import soundfile
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

SAMPLE_RATE_HZ = 16_000
CLIPS = Path(__file__).parents[1] / "tests" / "data"
STREAMS_A_CONNECTION = 32
_ids = count(random.getrandbits(40) << 20)


@dataclass
class Measured:
    """What one run saw: seconds from sending to reply, and how late pieces were sent."""

    chunk_latencies_s: list[float] = field(default_factory=list)
    piece_latencies_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def main() -> None:
    options = parse_arguments()
    print(
        f"{options.piece_ms} ms a request, encoder chunks of {options.chunk_ms} ms, {options.seconds} s; milliseconds"
    )
    names = ("streams", "chunks", "p50", "p90", "p99", "max", "pieces p99", "late p99", "errors")
    print(*(f"{name:>{max(7, len(name))}}" for name in names))
    for num_streams in options.streams:
        measured = asyncio.run(load(num_streams, options))
        chunks = np.array(measured.chunk_latencies_s) * 1e3
        print(
            f"{num_streams:>7} {len(chunks):>7}",
            *(f"{np.percentile(chunks, percent):>7.1f}" for percent in (50, 90, 99)),
            f"{chunks.max():>7.1f}",
            f"{np.percentile(measured.piece_latencies_s, 99) * 1e3:>10.1f}",
            f"{np.percentile(measured.lags_s, 99) * 1e3:>8.1f} {len(measured.errors):>7}",
            flush=True,
        )
        for error in sorted(set(measured.errors))[:3]:
            print(f"        {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--model", default="asr_streaming")
    parser.add_argument("--streams", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--piece-ms", type=int, default=160)
    parser.add_argument("--chunk-ms", type=int, default=640, help="the model's encoder chunk")
    return parser.parse_args()


async def load(num_streams: int, options: argparse.Namespace) -> Measured:
    """Run so many streams at once."""
    measured, speech = Measured(), read_speech()
    groups = [
        range(n, min(n + STREAMS_A_CONNECTION, num_streams))
        for n in range(0, num_streams, STREAMS_A_CONNECTION)
    ]
    await asyncio.gather(
        *(Connection(options, measured, speech).run(len(group)) for group in groups)
    )
    return measured


class Connection:
    """One gRPC stream that carries the chunks of many sequences.

    It speaks Triton's protocol without tritonclient's own layer: the generator shares the cores with what it measures.
    """

    def __init__(self, options: argparse.Namespace, measured: Measured, speech: bytes) -> None:
        self._options, self._measured, self._speech = options, measured, speech
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._sent_at: dict[str, tuple[float, bool]] = {}
        self._num_open = 0

    async def run(self, num_streams: int) -> None:
        async with grpc.aio.insecure_channel(self._options.url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            self._num_open = num_streams
            speakers = [asyncio.create_task(self._speak()) for _ in range(num_streams)]
            async for answer in stub.ModelStreamInfer(self._take_requests()):
                if answer.error_message:
                    self._measured.errors.append(answer.error_message)
                self._note(answer.infer_response.id)
            await asyncio.gather(*speakers)

    async def _take_requests(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request

    def _note(self, request_id: str) -> None:
        sent_at, completes_chunk = self._sent_at.pop(request_id)
        latency_s = time.perf_counter() - sent_at
        self._measured.piece_latencies_s.append(latency_s)
        if completes_chunk:
            self._measured.chunk_latencies_s.append(latency_s)
        if not self._sent_at and not self._num_open:
            self._requests.put_nowait(None)

    async def _speak(self) -> None:
        """Send one stream's speech, each piece when its last sample would have been heard."""
        options, sequence_id = self._options, next(_ids)
        piece_s = options.piece_ms / 1e3
        num_pieces = round(options.seconds / piece_s)
        piece = options.piece_ms * SAMPLE_RATE_HZ // 1000
        offset = random.randrange(len(self._speech) // 8)
        started = time.perf_counter() + random.random() * options.chunk_ms / 1e3
        num_chunks = 0
        for number in range(num_pieces):
            due = started + (number + 1) * piece_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            is_last = number == num_pieces - 1
            request = self._request(offset + number * piece, piece)
            request.id = f"{sequence_id}/{number}"
            request.parameters["sequence_id"].int64_param = sequence_id
            request.parameters["sequence_start"].bool_param = number == 0
            request.parameters["sequence_end"].bool_param = is_last
            num_due = chunks_of((number + 1) * piece, options.chunk_ms)
            now = time.perf_counter()
            self._measured.lags_s.append(now - due)
            self._sent_at[request.id] = (now, num_due > num_chunks or is_last)
            num_chunks = num_due
            self._num_open -= is_last
            self._requests.put_nowait(request)

    def _request(self, start: int, num_samples: int) -> Any:
        first = 4 * (start % (len(self._speech) // 8))
        request = messages.ModelInferRequest(model_name=self._options.model)
        request.inputs.add(name="WAV", datatype="FP32", shape=[1, num_samples])
        request.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
        request.outputs.add(name="TRANSCRIPTS")
        request.raw_input_contents.append(self._speech[first : first + 4 * num_samples])
        request.raw_input_contents.append(np.int32(num_samples).tobytes())
        return request


def chunks_of(num_samples: int, chunk_ms: int) -> int:
    """Return how many encoder chunks so many samples complete, from frames of 25 ms every 10 ms."""
    num_frames = max(0, (num_samples - 400) // 160 + 1)
    step = chunk_ms // 10
    return max(0, (num_frames - (step + 3)) // step + 1)


def read_speech() -> bytes:
    """Return the commands of the tests' data, one after the other, twice: float32 at 16 kHz."""
    paths = sorted([*CLIPS.glob("cards/*.wav"), *CLIPS.glob("commands/*.wav")])
    speech = [soundfile.read(path, dtype="float32")[0] for path in paths]
    return b"".join(clip.tobytes() for clip in [*speech, *speech])


if __name__ == "__main__":
    main()
