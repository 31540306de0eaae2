#!/usr/bin/env python3
"""Stream audio files, in chunks as they would be recorded, to a speech model of a Triton Inference Server.

    pip install "tritonclient[grpc]" numpy soundfile
    python stream.py --realtime talk.flac        # the text grows in place; at the end FILE<TAB>TEXT
    python stream.py *.wav > texts.tsv           # as fast as the server answers; only the final lines
    python stream.py --streams 32 --realtime talk.flac  # the same file 32 times at once, and how long replies took

Takes whatever libsndfile reads (WAV, FLAC, OGG, MP3, ...) at any sample rate and with any number of
channels. A file that fails is reported on stderr and the others go on. Exit codes: 0 every file has
its text, 1 some have not, 2 wrong usage, 130 stopped by Ctrl-C. Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
import unicodedata
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc  # a part of tritonclient[grpc]
import numpy as np
import soundfile
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

RETRY_DELAYS_S = (0.25, 0.5, 1.0, 2.0, 4.0)
CONNECT_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 1.0
MAX_UNANSWERED_S = 10.0  # of a stream's audio; the server takes 30 s (max_buffered_s)
ERASE_LINE = "\r\x1b[K"

Item = TypeVar("Item")
Result = TypeVar("Result")


class TranscriptionError(Exception):
    """One file has no text, for the reason given; the others are not concerned."""


class DifferentTextsError(TranscriptionError):
    """Streams of one file have not the same text."""


class ServerError(Exception):
    """The server cannot be used at all, so going on makes no sense."""


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    # Transcripts are UTF-8 in every locale, and a file's name may be any bytes.
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.stderr.reconfigure(errors="backslashreplace")
    try:
        return asyncio.run(stream_files(options))
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `stream.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def stream_files(options: argparse.Namespace) -> int:
    """Print the text of every file in order; return the exit code."""
    errors: list[TranscriptionError] = []
    latencies_s: list[float] = []
    async with triton.InferenceServerClient(options.url) as client:
        await check_server(client, options)
        with Screen() as screen:

            async def work(numbered: tuple[int, str]) -> str | TranscriptionError:
                number, path = numbered
                try:
                    show = partial(screen.show, number)
                    return await transcribe(client, path, options, show, latencies_s)
                except TranscriptionError as error:
                    return error

            files = enumerate(options.files)
            async with aclosing(in_order(files, work, options.concurrency)) as results:
                async for (_, path), result in results:
                    if isinstance(result, TranscriptionError):
                        errors.append(result)
                        screen.finish(f"{path}: {result}", sys.stderr)
                    else:
                        screen.finish(result, sys.stdout)
    if options.streams > 1:
        print(summary(errors, latencies_s), file=sys.stderr)
    return 1 if errors else 0


async def in_order(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], max_running: int
) -> AsyncGenerator[tuple[Item, Result], None]:
    """Yield every item with the result of its work, in the items' order.

    At most `max_running` items are worked on at a time; a slow one holds up what is yielded, not
    what is worked on.
    """
    slots = asyncio.Semaphore(max_running)

    async def limited(item: Item) -> Result:
        async with slots:
            return await work(item)

    tasks = [(item, asyncio.create_task(limited(item))) for item in items]
    try:
        for item, task in tasks:
            yield item, await task
    finally:
        for _, task in tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)


async def transcribe(
    client: Any,
    path: str,
    options: argparse.Namespace,
    show: Callable[[str], None],
    latencies_s: list[float],
) -> str:
    """Stream a file, as often as the user asked for, and return the line to print for it.

    `show` gets the first stream's text with every reply; `latencies_s` grows by the seconds that
    each chunk of each stream waited for its reply.
    """
    samples, sample_rate_hz = await asyncio.to_thread(read_audio, path)
    streams = [Stream(client, samples, sample_rate_hz, options) for _ in range(options.streams)]
    streams[0].show = show
    runs = [stream.run() for stream in streams]
    for failed in await asyncio.gather(*runs, return_exceptions=True):
        if failed:
            raise failed
    latencies_s += [seconds for stream in streams for seconds in stream.latencies_s]
    num_texts = len({stream.text for stream in streams})
    if num_texts > 1:
        raise DifferentTextsError(f"{len(streams)} streams gave {num_texts} different texts")
    text, details = streams[0].text, streams[0].details
    if options.json:
        return json.dumps({"file": path, "text": text, **details}, ensure_ascii=False)
    return f"{path}\t{' '.join(text.split())}"


def read_audio(path: str) -> tuple[np.ndarray, int]:
    """Return a file's samples, (samples,) float32 in +-1 mixed to one channel, and their rate.

    The rate stays the file's own: the server resamples.
    """
    try:
        Path(path).open("rb").close()  # libsndfile calls a missing file a "System error"
        samples, sample_rate_hz = soundfile.read(os.fsencode(path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise TranscriptionError(f"cannot read audio: {error.error_string}") from error
    except (OSError, TypeError) as error:  # TypeError: a headerless .raw file
        reason = getattr(error, "strerror", None) or error
        raise TranscriptionError(f"cannot read audio: {reason}") from error
    return samples.mean(axis=1), sample_rate_hz


@dataclass
class Stream:
    """One sequence of chunks of (samples,) float32, and what the server has answered so far.

    START goes as an empty request of its own, since only there an error says of which kind it is: on
    a gRPC stream Triton sends its text alone. All requests go over the client's one connection.
    """

    client: Any
    samples: np.ndarray
    sample_rate_hz: int
    options: argparse.Namespace
    show: Callable[[str], None] = lambda _: None
    # No two streams that live at a time may have the same id, whoever sends them.
    sequence_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Send every chunk and take every reply; TranscriptionError where the server refuses one."""
        try:
            await self._begin()
            await self._exchange()
        except BaseException:
            await self._leave()
            raise

    async def _begin(self) -> None:
        """Send START, again after a pause while the server takes no more streams."""
        for pause_s in (*RETRY_DELAYS_S, None):
            try:
                parameters = {"sample_rate": self.sample_rate_hz}
                await self._send_empty(sequence_start=True, parameters=parameters)
                return
            except InferenceServerException as error:
                if error.status() != "StatusCode.UNAVAILABLE" or pause_s is None:
                    await self._fail(error.message())
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))  # lest all come at once

    async def _exchange(self) -> None:
        """Send the chunks and take their replies."""
        is_live = self.options.realtime
        max_unanswered = int(MAX_UNANSWERED_S * 1000 / self.options.chunk_ms) if is_live else 1
        unanswered = asyncio.Semaphore(max(1, max_unanswered))
        sent_at: deque[float] = deque()
        replies = self.client.stream_infer(self._requests(unanswered, sent_at))
        try:
            async for result, error in replies:
                if error is not None:
                    await self._fail(error.message())
                self.latencies_s.append(time.monotonic() - sent_at.popleft())
                unanswered.release()
                self.text = string_of(result, "TRANSCRIPTS")
                self.details = json.loads(string_of(result, "DETAILS") or "{}")
                self.show(self.text)
        except grpc.aio.AioRpcError as error:
            await self._fail(error.details())
        finally:
            replies.cancel()
        if sent_at:
            await self._fail("the server left chunks without a reply")

    async def _requests(
        self, unanswered: asyncio.Semaphore, sent_at: deque[float]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a request for each chunk, when it is due and the server is not too far behind."""
        began_at = time.monotonic()
        num_samples = samples_a_chunk(self.sample_rate_hz, self.options.chunk_ms)
        for end, chunk in chunks(self.samples, num_samples):
            if self.options.realtime:  # it would be recorded only now
                due_at = began_at + end / self.sample_rate_hz
                await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            await unanswered.acquire()
            is_last = end == len(self.samples)
            outputs = ["TRANSCRIPTS"] + ["DETAILS"] * (is_last and self.options.json)
            sent_at.append(time.monotonic())
            yield {
                "model_name": self.options.model,
                "inputs": chunk_inputs(chunk),
                "outputs": [triton.InferRequestedOutput(name) for name in outputs],
                "sequence_id": self.sequence_id,
                "sequence_end": is_last,
            }

    async def _leave(self) -> None:
        """Send END, since the server would hold the stream's place for a minute."""
        with suppress(InferenceServerException):  # it may be over already
            await self._send_empty(sequence_end=True, client_timeout=LEAVE_TIMEOUT_S)

    async def _send_empty(self, **flags: Any) -> None:
        inputs = chunk_inputs(np.zeros(0, np.float32))
        model = self.options.model
        await self.client.infer(model, inputs, sequence_id=self.sequence_id, **flags)

    async def _fail(self, reason: str) -> NoReturn:
        """Raise the error that ends this file, or all where the server has gone."""
        await check_server(self.client, self.options)
        raise TranscriptionError(reason)


def samples_a_chunk(sample_rate_hz: int, chunk_ms: int) -> int:
    return max(1, sample_rate_hz * chunk_ms // 1000)


def chunks(samples: np.ndarray, num_samples: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield consecutive chunks, each with the position of its end; no samples are one empty chunk."""
    for start in range(0, max(1, len(samples)), num_samples):
        chunk = samples[start : start + num_samples]
        yield start + len(chunk), chunk


def chunk_inputs(samples: np.ndarray) -> list[Any]:
    """Return the inputs of one chunk: a batch of one row."""
    wav = triton.InferInput("WAV", [1, len(samples)], "FP32")
    wav.set_data_from_numpy(samples[np.newaxis])
    length = triton.InferInput("WAV_LENS", [1, 1], "INT32")
    length.set_data_from_numpy(np.array([[len(samples)]], np.int32))
    return [wav, length]


def string_of(result: Any, name: str) -> str:
    """Return an output of one string; '' where it was not asked for."""
    values = result.as_numpy(name)
    return "" if values is None else values.flat[0].decode("utf-8")


class Screen:
    """Final lines, and on a terminal the text so far of the file whose line is the next."""

    def __init__(self) -> None:
        self._shows_partials = sys.stdout.isatty()
        self._num_finished = 0
        self._is_line_open = False

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what stands there, and go to the next line."""
        if self._is_line_open:
            print(flush=True)

    def show(self, number: int, text: str) -> None:
        """Show the text so far of a file, by its number in the order of the lines."""
        if self._shows_partials and number == self._num_finished:
            num_columns = shutil.get_terminal_size().columns - 1
            shown = tail(" ".join(text.split()), num_columns)
            print(ERASE_LINE + shown, end="", flush=True)
            self._is_line_open = True

    def finish(self, line: str, output: Any) -> None:
        """Print a file's final line in place of its text so far."""
        if self._is_line_open:
            print(ERASE_LINE, end="", flush=True)
        self._is_line_open = False
        self._num_finished += 1
        print(line, file=output, flush=True)


def tail(text: str, num_columns: int) -> str:
    """Return as much of a text's end as fits into columns of a terminal, where some letters take two."""
    for start in range(len(text) - 1, -1, -1):
        num_columns -= 2 if unicodedata.east_asian_width(text[start]) in "WF" else 1
        if num_columns < 0:
            return text[start + 1 :]
    return text


def summary(errors: list[TranscriptionError], latencies_s: list[float]) -> str:
    """Say how streams of the same files compare, and how long chunks waited for their answers."""
    differ = any(isinstance(error, DifferentTextsError) for error in errors)
    identical = f"texts identical: {'no' if differ else 'yes'}"
    if not latencies_s:
        return "no file has a text from each of its streams"
    percentiles = zip((50, 90, 99), np.percentile(latencies_s, (50, 90, 99)), strict=True)
    times = ", ".join(f"p{percent} {1000 * seconds:.1f} ms" for percent, seconds in percentiles)
    return f"{identical}; replies to {len(latencies_s)} chunks: {times}"


async def check_server(client: Any, options: argparse.Namespace) -> None:
    """Raise ServerError unless the server answers and has the model ready."""
    place = f"{options.url} (grpc)"
    try:
        await asyncio.wait_for(client.is_server_live(), CONNECT_TIMEOUT_S)
        is_ready = await asyncio.wait_for(client.is_model_ready(options.model), CONNECT_TIMEOUT_S)
    except TimeoutError:
        raise ServerError(f"no answer from {place} in {CONNECT_TIMEOUT_S:g} s") from None
    except InferenceServerException as error:
        raise ServerError(f"cannot reach a Triton server at {place}: {error.message()}") from error
    if not is_ready:
        raise ServerError(f"the server at {place} has no model '{options.model}' that is ready")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE")
    add("--url", default="localhost:8001", help="HOST:PORT of gRPC (default: %(default)s)")
    add("--model", default="asr_streaming", help="default: %(default)s")
    add("--json", action="store_true", help="print the details of each file as JSON")
    add("--chunk-ms", type=at_least(1), default=160, metavar="MS",
        help="audio of one request (default: %(default)s)")  # fmt: skip
    add("--realtime", action="store_true",
        help="send each chunk when it would have been recorded, not when the one before is answered")  # fmt: skip
    add("--streams", type=at_least(1), default=1, metavar="N",
        help="stream each file so many times at once, and say on stderr whether the texts are "
        "identical and how long chunks waited for replies")  # fmt: skip
    add("--concurrency", type=at_least(1), default=8, metavar="N",
        help="files that are open at once (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    if "://" in options.url:
        parser.error(f"argument --url: give HOST:PORT without a scheme, not {options.url!r}")
    return options


def at_least(minimum: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {minimum} or more")
        return int(text)

    return whole_number


if __name__ == "__main__":
    sys.exit(main())
