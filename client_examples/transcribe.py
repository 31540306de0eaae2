#!/usr/bin/env python3
"""Transcribe audio files with a speech model of a Triton Inference Server.

    pip install "tritonclient[grpc,http]" numpy soundfile tqdm
    python transcribe.py talk.flac call.wav            # FILE<TAB>TEXT, a line a file, in this order
    python transcribe.py --json --protocol http *.mp3  # one JSON object a line, with word times

Takes whatever libsndfile reads (WAV, FLAC, OGG, MP3, ...) at any sample rate and with any number of
channels. A file that fails is reported on stderr and the others go on. Exit codes: 0 every file has
its text, 1 some have not, 2 wrong usage, 130 stopped by Ctrl-C. Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import aiohttp  # a part of tritonclient[http]
import numpy as np
import soundfile
import tritonclient.grpc.aio
import tritonclient.http.aio
from tqdm import tqdm
from tritonclient.utils import InferenceServerException

TRITON = {"grpc": tritonclient.grpc.aio, "http": tritonclient.http.aio}
DEFAULT_URLS = {"grpc": "localhost:8001", "http": "localhost:8000"}
UNAVAILABLE = ("StatusCode.UNAVAILABLE", "503")  # what gRPC and HTTP call an overloaded server
RETRY_DELAYS_S = (0.25, 0.5, 1.0, 2.0, 4.0)
CONNECT_TIMEOUT_S = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")


class TranscriptionError(Exception):
    """One file has no text, for the reason given; the others are not concerned."""


class ServerError(Exception):
    """The server cannot be used at all, so going on makes no sense."""


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    # Transcripts are UTF-8 in every locale, and a file's name may be any bytes.
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.stderr.reconfigure(errors="backslashreplace")
    try:
        return asyncio.run(transcribe_files(options))
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `transcribe.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def transcribe_files(options: argparse.Namespace) -> int:
    """Print the transcript of every file in order; return the exit code."""
    num_failed = 0
    async with connect(options) as client:
        await check_server(client, options)
        with tqdm(total=len(options.files), unit="file", disable=None) as bar:

            async def work(path: str) -> str | TranscriptionError:
                try:
                    return await transcribe(client, path, options)
                except TranscriptionError as error:
                    return error
                finally:
                    bar.update()

            async with aclosing(in_order(options.files, work, options.concurrency)) as results:
                async for path, result in results:
                    failed = isinstance(result, TranscriptionError)
                    num_failed += failed
                    with bar.external_write_mode():
                        if failed:
                            print(f"{path}: {result}", file=sys.stderr, flush=True)
                        else:
                            print(result, flush=True)
    return 1 if num_failed else 0


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


async def transcribe(client: Any, path: str, options: argparse.Namespace) -> str:
    """Return the line to print for a file."""
    samples, sample_rate_hz = await asyncio.to_thread(read_audio, path)
    triton = TRITON[options.protocol]
    inputs = [
        tensor(triton, "WAV", "FP32", samples),
        tensor(triton, "WAV_LENS", "INT32", np.array([len(samples)], np.int32)),
    ]
    del samples  # the tensor holds its own copy
    names = ["TRANSCRIPTS", "DETAILS"] if options.json else ["TRANSCRIPTS"]
    outputs = [triton.InferRequestedOutput(name) for name in names]
    result = await infer(client, inputs, outputs, sample_rate_hz, options)
    text, *details = (result.as_numpy(name).flat[0].decode("utf-8") for name in names)
    if options.json:
        line = {"file": path, "text": text, **json.loads(details[0])}
        return json.dumps(line, ensure_ascii=False)
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


def tensor(triton: Any, name: str, datatype: str, values: np.ndarray) -> Any:
    """Return an input that is a batch of one row."""
    row = triton.InferInput(name, [1, len(values)], datatype)
    row.set_data_from_numpy(values[np.newaxis])
    return row


async def infer(
    client: Any, inputs: list, outputs: list, sample_rate_hz: int, options: argparse.Namespace
) -> Any:
    """Send one request, again after a pause while the server is overloaded; return its result."""
    deadline_s = time.monotonic() + (options.deadline_ms or math.inf) / 1000
    for pause_s in (*RETRY_DELAYS_S, None):
        time_left_s = deadline_s - time.monotonic()
        try:
            return await client.infer(
                options.model,
                inputs,
                outputs=outputs,
                parameters=request_parameters(options, sample_rate_hz, time_left_s),
            )
        except InferenceServerException as error:
            reason = error.message()
            if error.status() not in UNAVAILABLE:
                break
        except aiohttp.ClientError as error:
            reason = f"connection lost: {error}"
        if pause_s is None or time.monotonic() + pause_s >= deadline_s:
            break
        await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))  # so that not all come at once
    await check_server(client, options)
    raise TranscriptionError(reason)


def request_parameters(
    options: argparse.Namespace, sample_rate_hz: int, time_left_s: float
) -> dict[str, int | str]:
    """Return what rides on a request: the sample rate and what the user asked for."""
    parameters = {
        "sample_rate": sample_rate_hz,
        "language": options.language,
        "task": options.task,
        # Not "priority": Triton keeps that name to itself, and clients refuse it.
        "scheduling_priority": options.priority,
        "deadline_ms": max(1, math.ceil(time_left_s * 1000)) if options.deadline_ms else None,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def connect(options: argparse.Namespace) -> Any:
    """Return a client of the chosen protocol; there is no limit on how long an answer takes."""
    triton = TRITON[options.protocol]
    if options.protocol == "http":
        return triton.InferenceServerClient(
            options.url, conn_limit=options.concurrency, conn_timeout=None
        )
    max_bytes = tritonclient.grpc.MAX_GRPC_MESSAGE_SIZE  # gRPC's own 4 MB are a minute of audio
    limits = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
    return triton.InferenceServerClient(
        options.url, channel_args=[(limit, max_bytes) for limit in limits]
    )


async def check_server(client: Any, options: argparse.Namespace) -> None:
    """Raise ServerError unless the server answers and has the model ready."""
    place = f"{options.url} ({options.protocol})"
    try:
        await asyncio.wait_for(client.is_server_live(), CONNECT_TIMEOUT_S)
        is_ready = await asyncio.wait_for(client.is_model_ready(options.model), CONNECT_TIMEOUT_S)
    except TimeoutError:
        raise ServerError(f"no answer from {place} in {CONNECT_TIMEOUT_S:g} s") from None
    except (InferenceServerException, aiohttp.ClientError, OSError) as error:
        reason = error.message() if isinstance(error, InferenceServerException) else error
        raise ServerError(f"cannot reach a Triton server at {place}: {reason}") from error
    if not is_ready:
        raise ServerError(f"the server at {place} has no model '{options.model}' that is ready")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE")
    add("--protocol", choices=TRITON, default="grpc", help="default: grpc")
    add("--url", help="HOST:PORT (default: localhost:8001 for grpc, localhost:8000 for http)")
    add("--model", default="asr_offline", help="default: %(default)s")
    add("--json", action="store_true", help="print the details of each file as JSON")
    add("--concurrency", type=at_least(1), default=8, metavar="N",
        help="files that are open at once (default: %(default)s); lower it for files of an hour, "
        "each of which takes about 1 GB here")  # fmt: skip
    add("--language", help="language that is spoken, such as 'en', if the model knows several")
    add("--task", help="'transcribe' or, if the model can, 'translate' (into English)")
    add("--priority", type=at_least(0), metavar="P", help="0 is the most urgent")
    add("--deadline-ms", type=at_least(1), metavar="MS", help="give up a file after this time")
    options = parser.parse_args(arguments)
    options.url = options.url or DEFAULT_URLS[options.protocol]
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
