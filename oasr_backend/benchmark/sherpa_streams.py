"""sherpa-onnx for live streams: its recognizer in process, and its own server. It knows nothing of figures."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import aiohttp

from oasr_backend.audio import Samples
from oasr_backend.benchmark.ruler import GONE, RefusedError
from oasr_backend.benchmark.streams import Pacing
from oasr_backend.errors import ConfigError

log = logging.getLogger(__name__)

SERVER = Path(sys.executable).with_name("sherpa-onnx-online-websocket-server")
READY_TIMEOUT_S = 60.0


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


@dataclass(slots=True)
class _Speaker:
    """A stream's connection, and who waits for what of it.

    num_samples: that were sent. num_texts: that came, one for each encoder chunk.
    waiting: futures, each with the number of texts that it waits for; None waits for the end.
    """

    pieces: asyncio.Queue[bytes | str] = field(default_factory=asyncio.Queue)
    num_samples: int = 0
    num_texts: int = 0
    text: str = ""
    waiting: list[tuple[int | None, asyncio.Future[str]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def settle(self, is_over: bool = False) -> None:
        """Answer whoever has what he waits for."""
        waiting, self.waiting = self.waiting, []
        for num_texts, future in waiting:
            if is_over or (num_texts is not None and num_texts <= self.num_texts):
                future.set_result(self.text)
            else:
                self.waiting.append((num_texts, future))


class SherpaServer:
    """sherpa-onnx's own server for live streams, which sends a text for each encoder chunk."""

    def __init__(
        self, name: str, folder: Path, log: Path, num_workers: int, chunk_size: int, left: int
    ) -> None:
        self.name = name
        self._log, self._pacing = log, Pacing()
        self._port = _free_port()
        self._command = [
            str(SERVER),
            f"--port={self._port}",
            f"--tokens={folder / 'tokens.txt'}",
            f"--wenet-ctc-model={folder / 'model-streaming.onnx'}",
            f"--wenet-ctc-chunk-size={chunk_size}",
            f"--wenet-ctc-num-left-chunks={left}",
            f"--num-work-threads={num_workers}",
            "--max-batch-size=32",
            # A stream is one utterance, as it is for the others.
            "--enable-endpoint=false",
            "--end-tail-padding=0",
            f"--log-file={log.with_suffix('.sherpa.log')}",
        ]
        self._speakers: dict[int, _Speaker] = {}

    async def start(self) -> None:
        if not SERVER.exists():
            raise ConfigError(f"{SERVER} is not there: install requirements/bench.txt")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(self._command, stdout=file, stderr=file)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        for _ in range(round(READY_TIMEOUT_S / 0.1)):
            if self._process.poll() is not None:
                break
            if await asyncio.to_thread(_listens, self._port):
                return
            await asyncio.sleep(0.1)
        await self.stop()
        raise ConfigError(f"{SERVER.name} did not start: its log is {self._log}")

    def send(
        self, stream: int, number: int, samples: Samples, is_last: bool
    ) -> asyncio.Future[str]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if number == 0:
            self._speakers[stream] = speaker = _Speaker()
            speaker.task = asyncio.create_task(self._speak(speaker))
        speaker = self._speakers[stream]
        if speaker.task is None or speaker.task.done():
            future.set_exception(RefusedError(GONE))
            return future
        speaker.num_samples += len(samples)
        speaker.pieces.put_nowait(samples.tobytes())
        if is_last:
            speaker.pieces.put_nowait("Done")
        num_texts = self._pacing.chunks_of(speaker.num_samples)
        speaker.waiting.append((None if is_last else num_texts, future))
        speaker.settle()
        return future

    async def stop(self) -> None:
        await self._session.close()
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)

    async def _speak(self, speaker: _Speaker) -> None:
        try:
            url = f"ws://localhost:{self._port}"
            async with self._session.ws_connect(url, max_msg_size=0) as connection:
                sending = asyncio.create_task(_send_pieces(connection, speaker))
                async for message in connection:
                    if message.data == "Done!":
                        speaker.settle(is_over=True)
                        break
                    speaker.text = json.loads(message.data)["text"]
                    speaker.num_texts += 1
                    speaker.settle()
                await sending
        except aiohttp.ClientError as error:
            log.warning("%s: %s", self.name, error)
        for _, future in speaker.waiting:
            future.set_exception(RefusedError(GONE))


async def _send_pieces(connection: Any, speaker: _Speaker) -> None:
    while isinstance(piece := await speaker.pieces.get(), bytes):
        await connection.send_bytes(piece)
    await connection.send_str(piece)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=1).close()
    except OSError:
        return False
    return True
