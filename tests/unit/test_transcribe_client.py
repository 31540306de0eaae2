"""The parts of client_examples/transcribe.py that need no server."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
from tritonclient.utils import InferenceServerException

CLIENT = Path(__file__).parents[2] / "client_examples" / "transcribe.py"
OVERLOADED_GRPC = InferenceServerException("queue is full", status="StatusCode.UNAVAILABLE")
OVERLOADED_HTTP = InferenceServerException("queue is full", status="503")
REFUSED = InferenceServerException("no such language", status="StatusCode.INVALID_ARGUMENT")


def load_client() -> ModuleType:
    specification = importlib.util.spec_from_file_location("transcribe_example", CLIENT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


client = load_client()


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


class FakeServer:
    """A Triton client whose answers are laid out beforehand; the last one is repeated."""

    def __init__(self, *answers: Any, live: bool = True, ready: bool = True) -> None:
        self.answers = list(answers)
        self.live = live
        self.ready = ready
        self.parameters: list[dict[str, Any]] = []

    async def infer(self, model: str, inputs: list, outputs: list, parameters: dict) -> Any:
        self.parameters.append(parameters)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def is_server_live(self) -> bool:
        if not self.live:
            raise InferenceServerException("connection refused", status="StatusCode.UNAVAILABLE")
        return True

    async def is_model_ready(self, model: str) -> bool:
        return self.ready


def infer(server: FakeServer, *arguments: str) -> Any:
    return asyncio.run(client.infer(server, [], [], 8000, options(*arguments)))


# Reading


@pytest.mark.parametrize(
    ("suffix", "subtype", "tolerance"),
    [
        ("wav", "PCM_16", 2**-15),
        ("wav", "PCM_24", 2**-23),
        ("wav", "PCM_32", 2**-23),
        ("wav", "FLOAT", 0),
        ("wav", "DOUBLE", 0),
        ("wav", "ULAW", 0.02),
        ("flac", "PCM_16", 2**-15),
        ("flac", "PCM_24", 2**-23),
        ("ogg", "VORBIS", 0.05),
        ("mp3", "MPEG_LAYER_III", 0.05),
    ],
)
def test_every_format_reads_as_float32_between_minus_one_and_one(
    tmp_path: Path, suffix: str, subtype: str, tolerance: float
) -> None:
    wave = (0.5 * np.sin(np.arange(16000) * 0.1)).astype(np.float32)
    path = tmp_path / f"tone.{suffix}"
    soundfile.write(path, wave, 16000, subtype=subtype)
    samples, sample_rate_hz = client.read_audio(str(path))
    assert (samples.dtype, samples.ndim, sample_rate_hz) == (np.float32, 1, 16000)
    middle = slice(2000, 14000)
    assert np.abs(samples[: len(wave)] - wave)[middle].max() <= tolerance


def test_channels_are_mixed_by_their_mean_at_the_rate_of_the_file(tmp_path: Path) -> None:
    left, right = np.array([0.5, -0.25, 1.0]), np.array([0.25, 0.25, -1.0])
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], axis=1), 44100, subtype="FLOAT")
    samples, sample_rate_hz = client.read_audio(str(tmp_path / "a.wav"))
    assert samples.tolist() == [0.375, 0.0, 0.0]
    assert sample_rate_hz == 44100


def test_a_file_without_samples_reads_as_no_samples(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "empty.wav", np.zeros((0, 2)), 8000)
    samples, _ = client.read_audio(str(tmp_path / "empty.wav"))
    assert samples.shape == (0,)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.wav", "cannot read audio: No such file or directory"),
        ("folder", "cannot read audio: Is a directory"),
        ("text.wav", "cannot read audio: Format not recognised."),
        ("nothing.wav", "cannot read audio: Format not recognised."),
        ("bare.raw", "cannot read audio: samplerate must be specified"),
    ],
)
def test_a_file_that_is_not_audio_is_refused_with_its_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.wav").write_text("this is not audio, whatever it is called")
    (tmp_path / "nothing.wav").touch()
    (tmp_path / "bare.raw").write_bytes(bytes(3200))
    with pytest.raises(client.TranscriptionError) as caught:
        client.read_audio(str(tmp_path / name))
    assert str(caught.value) == reason


def test_a_file_name_may_be_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/b\xff\xe9.wav"
    soundfile.write(path, np.zeros(10), 8000, format="WAV")
    samples, _ = client.read_audio(os.fsdecode(path))
    assert len(samples) == 10


# Order


def run_in_order(finish_order: list[int], max_running: int) -> tuple[list[int], list[int], int]:
    """Work on items 0..n that may finish only in the order given.

    Returns the items in the order in which they were yielded, the order of their starts, and the
    most that were running at once.
    """
    started: list[int] = []
    running = most_running = 0

    async def scenario() -> list[int]:
        done = {item: asyncio.Event() for item in finish_order}

        async def work(item: int) -> int:
            nonlocal running, most_running
            started.append(item)
            running += 1
            most_running = max(most_running, running)
            before = finish_order[: finish_order.index(item)]
            await asyncio.gather(*(done[other].wait() for other in before))
            done[item].set()
            running -= 1
            return item * 10

        items = range(len(finish_order))
        results = [pair async for pair in client.in_order(items, work, max_running)]
        assert all(result == item * 10 for item, result in results)
        return [item for item, _ in results]

    return asyncio.run(scenario()), started, most_running


@pytest.mark.parametrize(
    ("finish_order", "max_running"),
    [([0, 1, 2, 3], 1), ([2, 1, 0, 3], 3), ([4, 3, 2, 1, 0], 5), ([1, 2, 3, 4, 5, 0], 2)],
)
def test_results_come_in_the_order_of_the_items(finish_order: list[int], max_running: int) -> None:
    yielded, started, most_running = run_in_order(finish_order, max_running)
    assert yielded == started == sorted(finish_order)
    assert most_running == max_running


def test_a_slow_first_item_does_not_hold_up_work_on_the_others() -> None:
    _, started, _ = run_in_order([1, 2, 3, 4, 5, 0], max_running=2)
    assert started == [0, 1, 2, 3, 4, 5]  # 5 began although 0 finished last


def test_leaving_early_cancels_what_is_running() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> int:
        if item:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item)
                raise
        return item

    async def scenario() -> None:
        async with client.aclosing(client.in_order(range(5), work, 3)) as results:
            async for _ in results:
                await asyncio.sleep(0)
                break

    asyncio.run(scenario())
    assert {1, 2} <= set(cancelled) <= {1, 2, 3}


# Requests


@pytest.mark.parametrize("overloaded", [OVERLOADED_GRPC, OVERLOADED_HTTP])
def test_an_overloaded_server_is_asked_again_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, overloaded: Exception
) -> None:
    fake_time = FakeTime(monkeypatch)
    assert infer(FakeServer(overloaded, overloaded, overloaded, "text")) == "text"
    assert fake_time.pauses_s == [0.25, 0.5, 1.0]


def test_a_connection_that_breaks_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_time = FakeTime(monkeypatch)
    assert infer(FakeServer(client.aiohttp.ServerDisconnectedError(), "text")) == "text"
    assert fake_time.pauses_s == [0.25]


def test_a_server_that_stays_overloaded_costs_only_this_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_time = FakeTime(monkeypatch)
    with pytest.raises(client.TranscriptionError, match=r"^queue is full$"):
        infer(FakeServer(OVERLOADED_GRPC))
    assert fake_time.pauses_s == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_a_refused_request_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_time = FakeTime(monkeypatch)
    with pytest.raises(client.TranscriptionError, match=r"^no such language$"):
        infer(FakeServer(REFUSED))
    assert fake_time.pauses_s == []


def test_a_server_that_has_gone_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTime(monkeypatch)
    with pytest.raises(client.ServerError) as caught:
        infer(FakeServer(OVERLOADED_GRPC, live=False))
    message = "cannot reach a Triton server at localhost:8001 (grpc): connection refused"
    assert str(caught.value) == message


@pytest.mark.parametrize("answer", [OVERLOADED_GRPC, REFUSED])
def test_a_model_that_is_not_ready_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    FakeTime(monkeypatch)
    with pytest.raises(client.ServerError) as caught:
        infer(FakeServer(answer, ready=False))
    message = "the server at localhost:8001 (grpc) has no model 'asr_offline' that is ready"
    assert str(caught.value) == message


def test_a_retry_carries_what_is_left_of_the_deadline_and_none_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeTime(monkeypatch)
    server = FakeServer(OVERLOADED_GRPC)
    with pytest.raises(client.TranscriptionError):
        infer(server, "--deadline-ms", "2000")
    assert [sent["deadline_ms"] for sent in server.parameters] == [2000, 1750, 1250, 250]


def test_a_request_carries_the_sample_rate_and_only_the_options_given() -> None:
    assert client.request_parameters(options(), 44100, float("inf")) == {"sample_rate": 44100}
    given = options("--language", "en", "--task", "translate", "--priority", "0")
    assert client.request_parameters(given, 8000, float("inf")) == {
        "sample_rate": 8000,
        "language": "en",
        "task": "translate",
        "scheduling_priority": 0,
    }


# Usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: FILE"),
        (["a.wav", "--concurrency", "0"], "'0' is not a whole number of 1 or more"),
        (["a.wav", "--deadline-ms", "1.5"], "'1.5' is not a whole number of 1 or more"),
        (["a.wav", "--priority", "-1"], "'-1' is not a whole number of 0 or more"),
        (["a.wav", "--protocol", "smtp"], "invalid choice: 'smtp'"),
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
    ("protocol", "url"), [("grpc", "localhost:8001"), ("http", "localhost:8000")]
)
def test_the_default_address_is_the_one_of_the_protocol(protocol: str, url: str) -> None:
    assert options("--protocol", protocol).url == url
