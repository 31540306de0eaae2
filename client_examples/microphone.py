#!/usr/bin/env python3
"""Transcribe a microphone as one speaks, with a speech model of a Triton Inference Server.

    pip install "tritonclient[grpc]" numpy sounddevice  # on Debian and Ubuntu also: apt install libportaudio2
    python microphone.py                                # Enter or Ctrl-C ends it

The text grows in place on a terminal; the final text is the last line. Exit codes: 0 there is a text,
1 there is none, 2 wrong usage, 130 stopped by a second Ctrl-C. Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import sys
import threading
import uuid
from contextlib import closing
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

INSTALL = "pip install sounddevice, and on Debian and Ubuntu: apt install libportaudio2"
TIMEOUT_S = 30.0
ERASE_LINE = "\r\x1b[K"
NO_SAMPLES = np.zeros(0, np.float32)


class MicrophoneError(Exception):
    """There is no text, for the reason given."""


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        text = transcribe(options)
        show("")
        print(text, flush=True)
    except MicrophoneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except InferenceServerException as error:
        print(f"error: {error.message()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def transcribe(options: argparse.Namespace) -> str:
    """Send what the microphone hears until the user ends it; return the final text."""
    client = triton.InferenceServerClient(options.url)
    check_server(client, options)
    # Whatever happens, in order: samples that were heard, replies, and None when the user ends it.
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    microphone = open_microphone(options, events)
    client.start_stream(lambda result, error: events.put(error or result))
    try:
        with closing(microphone):
            return converse(client, options.model, int(microphone.samplerate), events)
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def check_server(client: Any, options: argparse.Namespace) -> None:
    """Raise MicrophoneError unless the server answers and has the model ready."""
    place = f"{options.url} (grpc)"
    try:
        is_ready = client.is_model_ready(options.model, client_timeout=TIMEOUT_S)
    except InferenceServerException as error:
        reason = f"cannot reach a Triton server at {place}: {error.message()}"
        raise MicrophoneError(reason) from None
    if not is_ready:
        raise MicrophoneError(f"the server at {place} has no model '{options.model}' that is ready")


def converse(client: Any, model: str, sample_rate_hz: int, events: queue.SimpleQueue[Any]) -> str:
    """Send chunks and show replies until the user ends it; return the text of the last reply."""
    sequence_id = str(uuid.uuid4())  # nobody else's
    start = {"sequence_start": True, "parameters": {"sample_rate": sample_rate_hz}}
    send(client, model, sequence_id, NO_SAMPLES, **start)
    put_none_when_ended(events)
    text, num_unanswered, is_ended = "", 1, False
    while num_unanswered or not is_ended:
        try:
            event = events.get(timeout=TIMEOUT_S)
        except queue.Empty:
            reason = f"neither microphone nor server said anything for {TIMEOUT_S:g} s"
            raise MicrophoneError(reason) from None
        if isinstance(event, Exception):
            raise event
        if isinstance(event, triton.InferResult):
            num_unanswered -= 1
            text = " ".join(event.as_numpy("TRANSCRIPTS").flat[0].decode("utf-8").split())
            show(text)
        elif not is_ended:
            is_ended = event is None
            samples = NO_SAMPLES if is_ended else event
            send(client, model, sequence_id, samples, sequence_end=is_ended)
            num_unanswered += 1
    return text


def send(client: Any, model: str, sequence_id: str, samples: np.ndarray, **flags: Any) -> None:
    """Send a chunk of (samples,) float32: a batch of one row."""
    wav = triton.InferInput("WAV", [1, len(samples)], "FP32")
    wav.set_data_from_numpy(samples[np.newaxis])
    length = triton.InferInput("WAV_LENS", [1, 1], "INT32")
    length.set_data_from_numpy(np.array([[len(samples)]], np.int32))
    outputs = [triton.InferRequestedOutput("TRANSCRIPTS")]
    client.async_stream_infer(
        model, [wav, length], outputs=outputs, sequence_id=sequence_id, **flags
    )


def open_microphone(options: argparse.Namespace, events: queue.SimpleQueue[Any]) -> Any:
    """Return a running microphone, at its own rate, that puts chunks of (samples,) float32."""
    try:
        import sounddevice  # not above, so that --help works without it
    except ModuleNotFoundError:
        raise MicrophoneError(f"the package sounddevice is not installed: {INSTALL}") from None
    except OSError as error:
        raise MicrophoneError(f"sounddevice cannot be used: {error}: {INSTALL}") from None
    try:
        device = sounddevice.query_devices(options.device, "input")
        sample_rate_hz = int(device["default_samplerate"])
        microphone = sounddevice.InputStream(
            sample_rate_hz,
            blocksize=max(1, sample_rate_hz * options.chunk_ms // 1000),
            device=options.device,
            channels=1,
            dtype="float32",
            callback=lambda samples, *_: events.put(samples[:, 0].copy()),
        )
        microphone.start()
    except (sounddevice.PortAudioError, ValueError) as error:
        raise MicrophoneError(
            f"no microphone: {error}: connect one, or choose one of `python -m sounddevice` by --device"
        ) from None
    return microphone


def put_none_when_ended(events: queue.SimpleQueue[Any]) -> None:
    """Put None when the user presses Enter, or Ctrl-C; a second Ctrl-C stops everything."""

    def at_ctrl_c(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        events.put(None)

    def at_enter() -> None:
        if os.read(sys.stdin.fileno(), 4096):  # b"" where there is no keyboard
            events.put(None)

    signal.signal(signal.SIGINT, at_ctrl_c)
    threading.Thread(target=at_enter, daemon=True).start()
    print("Speak. Enter or Ctrl-C ends it.", file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Show the text so far in place, on a terminal only: as much of its end as fits."""
    if sys.stdout.isatty():
        print(ERASE_LINE + text[1 - shutil.get_terminal_size().columns :], end="", flush=True)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--url", default="localhost:8001", help="HOST:PORT of gRPC (default: %(default)s)")
    add("--model", default="asr_streaming", help="default: %(default)s")
    add("--chunk-ms", type=chunk_ms, default=160, metavar="MS",
        help="audio of one request (default: %(default)s)")  # fmt: skip
    add("--device", type=number_or_name, metavar="DEVICE",
        help="number or name, as `python -m sounddevice` lists them (default: the system's)")  # fmt: skip
    options = parser.parse_args(arguments)
    if "://" in options.url:
        parser.error(f"argument --url: give HOST:PORT without a scheme, not {options.url!r}")
    return options


def chunk_ms(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def number_or_name(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        exit_code
    )  # gRPC's threads now and then keep a process that ends after a refused stream
