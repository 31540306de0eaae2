"""The parts of client_examples/stream.py and microphone.py that need no server."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import io
import json
import os
import queue
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from tritonclient.utils import InferenceServerException

CLIENTS = Path(__file__).parents[2] / "client_examples"
OVERLOADED = InferenceServerException("6 streams are open", status="StatusCode.UNAVAILABLE")
REFUSED = InferenceServerException("no such rate", status="StatusCode.INVALID_ARGUMENT")
ERASE = "\r\x1b[K"
YIELD = asyncio.sleep  # as it was before a test replaced it


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"{name}_example", CLIENTS / name)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


client = load("stream.py")
microphone = load("microphone.py")


def options(*arguments: str) -> argparse.Namespace:
    return client.parse_arguments([*arguments, "clip.wav"])


class FakeTime:
    """The clock and the sleep of the client; time passes only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []
        monkeypatch.setattr(client.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(client.asyncio, "sleep", self.sleep)
        monkeypatch.setattr(client.random, "uniform", lambda low, high: (low + high) / 2)

    async def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        self.now_s += pause_s


class FakeResult:
    """A reply of one text, with details where they were asked for."""

    def __init__(self, text: str, names: list[str]) -> None:
        self._values = {"TRANSCRIPTS": text, "DETAILS": json.dumps({"words": [text]})}
        self._names = names

    def as_numpy(self, name: str) -> np.ndarray | None:
        return np.array([[self._values[name].encode()]]) if name in self._names else None


class FakeReplies:
    """Takes a request when a reply is wanted; the text of each is how many samples it has heard."""

    def __init__(self, server: FakeServer, requests: AsyncIterator[dict[str, Any]]) -> None:
        self._server, self._requests = server, requests

    def __aiter__(self) -> FakeReplies:
        return self

    async def __anext__(self) -> tuple[FakeResult | None, Exception | None]:
        request = await anext(self._requests)
        self._server.chunks.append(request)
        self._server.sent_at.append(client.time.monotonic())
        if len(self._server.chunks) == self._server.num_chunks_taken + 1:
            return None, InferenceServerException("audio is nan")
        num_heard = sum(chunk["inputs"][0].shape()[1] for chunk in self._server.chunks)
        return FakeResult(str(num_heard), [out.name() for out in request["outputs"]]), None

    def cancel(self) -> None:
        pass


class FakeServer:
    """A Triton client whose answers to lone requests are laid out; chunks beyond some are refused."""

    def __init__(
        self, *answers: Any, live: bool = True, num_chunks_taken: float = float("inf")
    ) -> None:
        self.answers = list(answers)
        self.live = live
        self.num_chunks_taken = num_chunks_taken
        self.flags: list[dict[str, Any]] = []
        self.chunks: list[dict[str, Any]] = []
        self.sent_at: list[float] = []

    async def infer(self, model: str, inputs: list, sequence_id: str, **flags: Any) -> None:
        self.flags.append({"sequence_id": sequence_id, **flags})
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer

    def stream_infer(self, requests: AsyncIterator[dict[str, Any]]) -> FakeReplies:
        return FakeReplies(self, requests)

    async def is_server_live(self) -> bool:
        if not self.live:
            raise InferenceServerException("connection refused", status="StatusCode.UNAVAILABLE")
        return True

    async def is_model_ready(self, model: str) -> bool:
        return True


def stream(server: FakeServer, num_samples: int, *arguments: str) -> Any:
    """Stream silence at 1 kHz, and return the client's stream."""
    run = client.Stream(server, np.zeros(num_samples, np.float32), 1000, options(*arguments))
    asyncio.run(run.run())
    return run


# Chunks


@pytest.mark.parametrize(
    ("num_samples", "size", "ends"),
    [(0, 4, [0]), (1, 4, [1]), (4, 4, [4]), (5, 4, [4, 5]), (9, 3, [3, 6, 9])],
)
def test_chunks_are_all_samples_in_order_and_never_none(
    num_samples: int, size: int, ends: list[int]
) -> None:
    samples = np.arange(num_samples)
    found = list(client.chunks(samples, size))
    assert [end for end, _ in found] == ends
    assert np.concatenate([chunk for _, chunk in found]).tolist() == samples.tolist()


@pytest.mark.parametrize(
    ("rate", "chunk_ms", "expected"), [(16000, 160, 2560), (44100, 10, 441), (11025, 1, 11)]
)
def test_a_chunk_is_of_so_many_milliseconds_at_the_rate_of_the_file(
    rate: int, chunk_ms: int, expected: int
) -> None:
    assert client.samples_a_chunk(rate, chunk_ms) == expected


def test_a_stream_is_start_then_chunks_of_one_id_and_the_last_one_ends_it() -> None:
    server = FakeServer()
    run = stream(server, 350, "--json")
    start = {"sequence_start": True, "parameters": {"sample_rate": 1000}}
    assert server.flags == [{"sequence_id": run.sequence_id, **start}]
    assert {chunk["sequence_id"] for chunk in server.chunks} == {run.sequence_id}
    assert [chunk["inputs"][0].shape() for chunk in server.chunks] == [[1, 160], [1, 160], [1, 30]]
    assert [chunk["sequence_end"] for chunk in server.chunks] == [False, False, True]
    names = [[out.name() for out in chunk["outputs"]] for chunk in server.chunks]
    assert names == [["TRANSCRIPTS"], ["TRANSCRIPTS"], ["TRANSCRIPTS", "DETAILS"]]
    assert (run.text, run.details, len(run.latencies_s)) == ("350", {"words": ["350"]}, 3)


def test_no_two_streams_have_the_same_id() -> None:
    streams = [client.Stream(None, None, 16000, options()) for _ in range(100)]
    assert len({one.sequence_id for one in streams}) == 100


def test_in_real_time_a_chunk_is_sent_when_it_would_have_been_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_time = FakeTime(monkeypatch)
    server = FakeServer()
    stream(server, 350, "--realtime")
    assert server.sent_at == pytest.approx([100.16, 100.32, 100.35])
    assert fake_time.now_s == pytest.approx(100.35)


def test_else_a_chunk_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_time = FakeTime(monkeypatch)
    stream(FakeServer(), 350)
    assert fake_time.pauses_s == []


@pytest.mark.parametrize(
    ("arguments", "num_sent"),
    [([], 1), (["--realtime"], 62), (["--realtime", "--chunk-ms", "20000"], 1)],
)
def test_no_more_is_sent_while_so_much_is_unanswered(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], num_sent: int
) -> None:
    FakeTime(monkeypatch)

    class Silent(FakeReplies):
        """Takes requests until none comes, replies to none, and closes."""

        async def __anext__(self) -> Any:
            while True:
                request = asyncio.ensure_future(anext(self._requests))
                await YIELD(0)
                if not request.done():
                    request.cancel()
                    raise StopAsyncIteration
                self._server.chunks.append(request.result())

    server = FakeServer()
    monkeypatch.setattr(server, "stream_infer", lambda requests: Silent(server, requests))
    with pytest.raises(
        client.TranscriptionError, match=r"^the server left chunks without a reply$"
    ):
        stream(server, 100_000, *arguments)
    assert len(server.chunks) == num_sent


# Refusals


def test_start_is_sent_again_after_growing_pauses_while_the_server_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_time = FakeTime(monkeypatch)
    assert stream(FakeServer(OVERLOADED, OVERLOADED, OVERLOADED), 10).text == "10"
    assert fake_time.pauses_s == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("answers", "message", "pauses_s"),
    [
        ([OVERLOADED] * 7, "6 streams are open", [0.25, 0.5, 1.0, 2.0, 4.0]),
        ([REFUSED], "no such rate", []),
    ],
)
def test_a_stream_that_is_refused_costs_only_its_file_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch, answers: list, message: str, pauses_s: list[float]
) -> None:
    fake_time = FakeTime(monkeypatch)
    server = FakeServer(*answers)
    with pytest.raises(client.TranscriptionError, match=f"^{message}$"):
        stream(server, 10)
    assert fake_time.pauses_s == pauses_s
    assert server.chunks == []
    assert server.flags[-1]["sequence_end"]


def test_a_chunk_that_is_refused_ends_the_stream_here_and_on_the_server() -> None:
    server = FakeServer(num_chunks_taken=1)
    with pytest.raises(client.TranscriptionError, match=r"^audio is nan$"):
        stream(server, 1000)
    assert len(server.chunks) == 2
    assert server.flags[-1]["sequence_end"]


def test_a_server_that_has_gone_ends_the_run() -> None:
    with pytest.raises(client.ServerError) as caught:
        stream(FakeServer(num_chunks_taken=1, live=False), 1000)
    message = "cannot reach a Triton server at localhost:8001 (grpc): connection refused"
    assert str(caught.value) == message


# Many streams of one file


def transcribe(path: Path, *arguments: str) -> tuple[str, list[float]]:
    soundfile.write(path, np.zeros((320, 2)), 8000)
    latencies_s: list[float] = []
    server = FakeServer()
    given = options("--chunk-ms", "1000", *arguments)
    run = client.transcribe(server, str(path), given, lambda text: None, latencies_s)
    return asyncio.run(run), latencies_s


def test_a_line_is_the_file_a_tab_and_its_text(tmp_path: Path) -> None:
    line, latencies_s = transcribe(tmp_path / "a.wav")
    assert line == f"{tmp_path}/a.wav\t320"
    assert len(latencies_s) == 1


def test_json_is_an_object_with_the_details(tmp_path: Path) -> None:
    line, _ = transcribe(tmp_path / "a.wav", "--json")
    assert json.loads(line) == {"file": f"{tmp_path}/a.wav", "text": "320", "words": ["320"]}


def test_streams_of_one_file_with_different_texts_are_an_error(tmp_path: Path) -> None:
    # The fake server's text counts the samples of all streams together.
    with pytest.raises(
        client.DifferentTextsError, match=r"^3 streams gave 3 different texts$"
    ) as caught:
        transcribe(tmp_path / "a.wav", "--streams", "3")
    summary = client.summary([caught.value], [0.001] * 10)
    assert summary.startswith("texts identical: no; ")


def test_the_summary_gives_percentiles_of_the_replies() -> None:
    latencies_s = [0.001 * number for number in range(101)]
    assert client.summary([], latencies_s) == (
        "texts identical: yes; replies to 101 chunks: p50 50.0 ms, p90 90.0 ms, p99 99.0 ms"
    )
    assert client.summary([], []) == "no file has a text from each of its streams"


# The terminal


class FakeTerminal(io.StringIO):
    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def print_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeTerminal], FakeTerminal]:
    def start(terminal: FakeTerminal) -> FakeTerminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        size = os.terminal_size((11, 24))
        monkeypatch.setattr(client.shutil, "get_terminal_size", lambda: size)
        return terminal

    return start


def test_a_partial_text_stands_in_place_until_the_final_line(print_to) -> None:
    terminal = print_to(FakeTerminal())
    with client.Screen() as screen:
        screen.show(0, "so")
        screen.show(0, "so far\nso good")
        screen.finish("a.wav\tso far so good.", terminal)
    expected = f"{ERASE}so{ERASE}ar so good{ERASE}a.wav\tso far so good.\n"
    assert terminal.getvalue() == expected


def test_only_the_file_whose_line_is_next_shows_partial_texts(print_to) -> None:
    terminal = print_to(FakeTerminal())
    with client.Screen() as screen:
        screen.show(1, "later")
        screen.finish("first", terminal)
        screen.show(1, "now")
        screen.show(0, "past")
    assert terminal.getvalue() == f"first\n{ERASE}now\n"


def test_where_output_is_no_terminal_only_final_lines_are_printed(print_to) -> None:
    output = print_to(FakeTerminal(is_terminal=False))
    with client.Screen() as screen:
        screen.show(0, "so")
        screen.finish("final", output)
    assert output.getvalue() == "final\n"


@pytest.mark.parametrize(
    ("text", "num_columns", "expected"),
    [
        ("", 5, ""),
        ("hello", 5, "hello"),
        ("hello world", 5, "world"),
        ("今天天气", 8, "今天天气"),
        ("今天天气", 7, "天天气"),
        ("a今天", 5, "a今天"),
    ],
)
def test_a_long_text_shows_its_end_by_columns(text: str, num_columns: int, expected: str) -> None:
    assert client.tail(text, num_columns) == expected


# Usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: FILE"),
        (["a.wav", "--chunk-ms", "0"], "'0' is not a whole number of 1 or more"),
        (["a.wav", "--streams", "0"], "'0' is not a whole number of 1 or more"),
        (["a.wav", "--concurrency", "-1"], "'-1' is not a whole number of 1 or more"),
        (["a.wav", "--url", "http://here"], "give HOST:PORT without a scheme, not 'http://here'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        client.parse_arguments(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunk-ms", "x"], "'x' is not a whole number of 1 or more"),
        (["--url", "grpc://here"], "give HOST:PORT without a scheme, not 'grpc://here'"),
    ],
)
def test_wrong_usage_of_the_microphone_exits_with_2_too(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        microphone.parse_arguments(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


# The microphone


class FakePortAudio(ModuleType):
    """The package sounddevice with one microphone that says three blocks when it is started."""

    PortAudioError = type("PortAudioError", (Exception,), {})

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("sounddevice")
        self.given: dict[str, Any] = {}
        self._error = error

    def query_devices(self, device: Any, kind: str) -> dict[str, float]:
        if self._error is not None:
            raise self._error
        return {"default_samplerate": 44100.0}

    def InputStream(self, samplerate: int, **given: Any) -> Any:  # noqa: N802 - their name
        self.given = {"samplerate": samplerate, **given}
        block = np.full((4, 1), 0.5, np.float32)

        def start() -> None:
            for _ in range(3):
                given["callback"](block, 4, None, None)
            block[:] = np.nan  # PortAudio uses its memory again

        return SimpleNamespace(start=start, samplerate=float(samplerate))


def open_microphone(*arguments: str) -> queue.SimpleQueue[Any]:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    microphone.open_microphone(microphone.parse_arguments([*arguments]), events)
    return events


def test_the_microphone_is_heard_in_chunks_at_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    audio = FakePortAudio()
    monkeypatch.setitem(sys.modules, "sounddevice", audio)
    events = open_microphone("--device", "3", "--chunk-ms", "10")
    assert [events.get_nowait().tolist() for _ in range(3)] == [[0.5] * 4] * 3
    del audio.given["callback"]
    assert audio.given == {
        "samplerate": 44100,
        "blocksize": 441,
        "device": 3,
        "channels": 1,
        "dtype": "float32",
    }


@pytest.mark.parametrize(
    "error", [FakePortAudio.PortAudioError("Error querying device -1"), ValueError("No input 'x'")]
)
def test_where_no_microphone_is_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", FakePortAudio(error))
    with pytest.raises(microphone.MicrophoneError) as caught:
        open_microphone()
    assert str(caught.value) == (
        f"no microphone: {error}: connect one, or choose one of `python -m sounddevice` by --device"
    )


def test_without_sounddevice_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(microphone.MicrophoneError) as caught:
        open_microphone()
    assert str(caught.value) == (
        "the package sounddevice is not installed: pip install sounddevice, and on Debian and Ubuntu: "
        "apt install libportaudio2"
    )
