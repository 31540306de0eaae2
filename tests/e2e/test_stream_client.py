"""client_examples/stream.py and microphone.py as a user runs them: processes of their own against a real server."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.e2e.asr import copy_model, metrics
from tests.e2e.server_fixture import RunningServer, running_server

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "client_examples"
DATA = ROOT / "tests" / "data"
CLIPS = sorted((DATA / "cards").glob("*.wav"))
CLIP = DATA / "commands" / "goforward.wav"
LONG_CLIP = DATA / "librivox" / "sense_and_sensibility_01_austen_64kb-0870.wav"

FAKE_SOUNDDEVICE = '''
"""The package sounddevice, whose one microphone has heard a file as soon as it is started."""
import os
import soundfile


class PortAudioError(Exception):
    pass


def query_devices(device, kind):
    return {"default_samplerate": float(soundfile.info(os.environ["HEARD"]).samplerate)}


class InputStream:
    def __init__(self, samplerate, *, blocksize, device, channels, dtype, callback):
        self.samplerate, self._blocksize, self._callback = samplerate, blocksize, callback

    def start(self):
        for block in soundfile.blocks(os.environ["HEARD"], self._blocksize, dtype="float32", always_2d=True):
            self._callback(block, len(block), None, None)

    def close(self):
        pass
'''


def command(url: str, *arguments: object, script: str = "stream.py") -> list[str]:
    return [sys.executable, str(CLIENTS / script), "--url", url, *map(str, arguments)]


def run_client(
    server: RunningServer, *arguments: object, script: str = "stream.py", **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(server.grpc_url, *arguments, script=script),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        **options,
    )


def transcribe(server: RunningServer, *arguments: object) -> list[tuple[str, str]]:
    """Return (file, text) of every line printed by a run in which nothing failed."""
    result = run_client(server, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return [
        (file, text) for file, text in (line.split("\t") for line in result.stdout.splitlines())
    ]


def num_streams(server: RunningServer, model: str = "asr_streaming") -> float:
    values = metrics(server)
    states = ("running", "waiting")
    return sum(values[f'oasr_streams{{model="{model}",state="{state}"}}'] for state in states)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The shipped model of streams, and one that takes two streams and lets one wait."""
    folder = tmp_path_factory.mktemp("stream-client")
    shared = {"source": "asr_streaming", "max_sequence_idle_microseconds": "3000000"}
    copy_model(folder / "models", "asr_streaming", **shared)
    copy_model(folder / "models", "small", max_streams="2", max_waiting="1", **shared)
    with running_server(folder / "models", folder / "server.log") as server:
        yield server


@pytest.fixture(scope="module")
def texts(server: RunningServer) -> dict[Path, str]:
    """The text of every clip, each in a single chunk."""
    pairs = transcribe(server, *CLIPS, CLIP, LONG_CLIP, "--chunk-ms", 30000)
    return {Path(file): text for file, text in pairs}


@pytest.mark.parametrize("chunk_ms", [7, 160, 1000])
def test_a_file_has_the_same_text_in_chunks_of_any_length(
    server: RunningServer, texts: dict[Path, str], chunk_ms: int
) -> None:
    assert transcribe(server, CLIP, "--chunk-ms", chunk_ms) == [(str(CLIP), texts[CLIP])]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_several_files_come_in_the_order_of_the_arguments(
    server: RunningServer, texts: dict[Path, str], concurrency: int
) -> None:
    order = [LONG_CLIP, *CLIPS, CLIP, CLIPS[0]]
    heard = transcribe(server, *order, "--concurrency", concurrency)
    assert heard == [(str(clip), texts[clip]) for clip in order]


def test_in_real_time_a_file_takes_as_long_as_it_lasts(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    began_at = time.monotonic()
    assert transcribe(server, "--realtime", CLIPS[0]) == [(str(CLIPS[0]), texts[CLIPS[0]])]
    assert time.monotonic() - began_at >= soundfile.info(CLIPS[0]).duration


def test_streams_of_one_file_are_summed_up(server: RunningServer, texts: dict[Path, str]) -> None:
    result = run_client(server, "--streams", 4, CLIPS[0], CLIPS[1])
    assert result.stdout.splitlines() == [f"{clip}\t{texts[clip]}" for clip in CLIPS[:2]]
    num_chunks = 4 * sum(-(-soundfile.info(clip).frames // 2560) for clip in CLIPS[:2])
    summary = (
        rf"texts identical: yes; replies to {num_chunks} chunks: (p\d\d [\d.]+ ms(, )?){{3}}\n"
    )
    assert re.fullmatch(summary, result.stderr), result.stderr
    assert result.returncode == 0


def test_streams_beyond_what_the_server_takes_try_again(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    result = run_client(server, "--model", "small", "--streams", 5, CLIPS[0])
    assert result.stdout == f"{CLIPS[0]}\t{texts[CLIPS[0]]}\n"
    assert result.returncode == 0


def test_json_gives_an_object_a_line_with_words(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    result = run_client(server, "--json", CLIP, CLIPS[0])
    assert (result.returncode, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    found = [(Path(line["file"]), line["text"], line["is_final"]) for line in lines]
    assert found == [(clip, texts[clip], True) for clip in (CLIP, CLIPS[0])]
    for line in lines:
        assert " ".join(word["word"] for word in line["words"]) == line["text"]


def test_another_rate_several_channels_and_no_samples_are_taken(
    server: RunningServer, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros((44100, 2)), 44100)
    soundfile.write(tmp_path / "b.wav", np.zeros(0), 8000)
    (file_a, _), b = transcribe(server, tmp_path / "a.flac", tmp_path / "b.wav")
    assert (file_a, b) == (f"{tmp_path}/a.flac", (f"{tmp_path}/b.wav", ""))


def test_a_bad_file_is_reported_and_the_rest_goes_on(
    server: RunningServer, texts: dict[Path, str], tmp_path: Path
) -> None:
    missing, broken, slow = tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "c.wav"
    soundfile.write(broken, np.full(16000, np.nan, np.float32), 16000, subtype="FLOAT")
    soundfile.write(slow, np.zeros(4000), 4000)
    result = run_client(server, missing, CLIPS[0], broken, slow, CLIPS[1])
    assert result.returncode == 1
    assert result.stdout.splitlines() == [f"{clip}\t{texts[clip]}" for clip in CLIPS[:2]]
    errors = result.stderr.splitlines()
    assert errors[0] == f"{missing}: cannot read audio: No such file or directory"
    assert [line.partition(" is ")[0] for line in errors[1:]] == [
        f"{broken}: audio",
        f"{slow}: sample_rate",
    ]
    wait_until(lambda: num_streams(server) == 0)


def test_on_a_terminal_the_text_grows_in_place(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    ours, theirs = pty.openpty()
    given = command(server.grpc_url, CLIP)
    result = subprocess.run(given, stdout=theirs, stderr=-1, timeout=60, check=False)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (result.returncode, result.stderr) == (0, b"")
    *partials, last = shown.split("\r\x1b[K")
    assert last == f"{CLIP}\t{texts[CLIP]}\r\n"
    assert len(partials) == 1 + -(-soundfile.info(CLIP).frames // 2560)
    assert "".join(partials).count("\n") == 0


@pytest.mark.parametrize("script", ["stream.py", "microphone.py"])
def test_a_server_that_cannot_be_reached_is_one_line(script: str) -> None:
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        given = command(url, *([CLIP] if script == "stream.py" else []), script=script)
        result = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: cannot reach a Triton server at {url} (grpc): ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["stream.py", "microphone.py"])
def test_a_model_that_is_not_served_is_one_line(server: RunningServer, script: str) -> None:
    files = [CLIP] if script == "stream.py" else []
    result = run_client(server, "--model", "no_such_model", *files, script=script)
    assert (result.returncode, result.stdout) == (1, "")
    place = f"{server.grpc_url} (grpc)"
    assert result.stderr == (
        f"error: the server at {place} has no model 'no_such_model' that is ready\n"
    )


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Let children be interrupted, also where this run is a shell's background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_stops_at_once_and_frees_the_streams(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    arguments = command(server.grpc_url, "--realtime", CLIPS[0], LONG_CLIP, LONG_CLIP)
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert first == f"{CLIPS[0]}\t{texts[CLIPS[0]]}\n"
    assert (process.returncode, rest, errors) == (130, "", "stopped\n")
    wait_until(lambda: num_streams(server) == 0, timeout_s=5.0)  # the idle limit is a minute


@pytest.fixture
def hearing(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose microphone hears a clip."""
    (tmp_path / "sounddevice.py").write_text(FAKE_SOUNDDEVICE)
    return {**os.environ, "PYTHONPATH": str(tmp_path), "HEARD": str(CLIP)}


def test_a_microphone_is_transcribed_until_enter(
    server: RunningServer, texts: dict[Path, str], hearing: dict[str, str]
) -> None:
    result = run_client(server, script="microphone.py", env=hearing, input="\n")
    assert (result.returncode, result.stdout) == (0, f"{texts[CLIP]}\n")
    assert result.stderr == "Speak. Enter or Ctrl-C ends it.\n"


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_a_microphone_is_transcribed_until_ctrl_c(
    server: RunningServer, texts: dict[Path, str], hearing: dict[str, str]
) -> None:
    given = command(server.grpc_url, script="microphone.py")
    with subprocess.Popen(given, stdin=-1, stdout=-1, stderr=-1, text=True, env=hearing) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=20)
    assert (process.returncode, text, errors) == (0, f"{texts[CLIP]}\n", "")


def test_a_microphone_that_the_server_refuses_is_one_line(
    server: RunningServer, hearing: dict[str, str], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "slow.wav", np.zeros(4000), 4000)
    environment = {**hearing, "HEARD": str(tmp_path / "slow.wav")}
    result = run_client(server, script="microphone.py", env=environment, input="\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert "error: sample_rate is 4000 Hz; allowed are 8000 to 192000 Hz" in result.stderr
