"""client_examples/transcribe.py as a user runs it: a process of its own against a real server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from oasr_backend.wer import fold, word_error_rate
from tests.e2e.server_fixture import RunningServer

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client_examples" / "transcribe.py"
DATA = ROOT / "tests" / "data"
PROTOCOLS = ["grpc", "http"]
CLIP = DATA / "librivox" / "sense_and_sensibility_01_austen_64kb-0870.wav"
SHORT_CLIP = DATA / "librivox" / "sense_and_sensibility_01_austen_64kb-0930.wav"


def references(folder: str) -> dict[Path, str]:
    lines = (DATA / folder / "transcripts.tsv").read_text().splitlines()
    return {DATA / folder / name: text for name, text in (line.split("\t") for line in lines)}


def command(url: str, *arguments: object, protocol: str = "grpc") -> list[str]:
    given = map(str, arguments)
    return [sys.executable, str(CLIENT), "--protocol", protocol, "--url", url, *given]


def run_client(
    server: RunningServer, *arguments: object, protocol: str = "grpc"
) -> subprocess.CompletedProcess[str]:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    return subprocess.run(
        command(url, *arguments, protocol=protocol),
        capture_output=True,
        encoding="utf-8",
        timeout=150,
        check=False,
    )


def transcribe(
    server: RunningServer, *arguments: object, protocol: str = "grpc"
) -> list[tuple[str, str]]:
    """Return (file, text) of every line printed by a run in which nothing failed."""
    result = run_client(server, *arguments, protocol=protocol)
    assert (result.returncode, result.stderr) == (0, "")
    return [
        (file, text) for file, text in (line.split("\t") for line in result.stdout.splitlines())
    ]


@pytest.fixture(scope="module")
def server(asr_server: RunningServer) -> RunningServer:
    """The shipped model repository on a real tritonserver."""
    return asr_server


@pytest.fixture(scope="module")
def clips() -> dict[Path, str]:
    return references("librivox") | references("cards") | references("commands")


@pytest.fixture(scope="module")
def texts(server: RunningServer, clips: dict[Path, str]) -> dict[Path, str]:
    """The text of every clip, sent over gRPC all at once."""
    pairs = transcribe(server, *clips, "--concurrency", len(clips))
    return {Path(file): text for file, text in pairs}


def test_read_sentences_come_back_with_at_most_ten_percent_word_errors(
    texts: dict[Path, str],
) -> None:
    expected = references("librivox")
    heard = [texts[clip] for clip in expected]
    assert word_error_rate(list(expected.values()), heard) <= 0.10, heard


def test_clips_of_a_few_words_come_back_with_at_most_fifteen_percent_word_errors(
    texts: dict[Path, str],
) -> None:
    expected = references("cards") | references("commands")
    heard = [texts[clip] for clip in expected]
    assert word_error_rate(list(expected.values()), heard) <= 0.15, heard


@pytest.mark.parametrize(("protocol", "concurrency"), [("grpc", 1), ("http", 1), ("http", 5)])
def test_text_is_the_same_over_both_protocols_alone_and_among_others(
    server: RunningServer, texts: dict[Path, str], protocol: str, concurrency: int
) -> None:
    clips = list(references("librivox"))
    heard = transcribe(server, *clips, "--concurrency", concurrency, protocol=protocol)
    assert heard == [(str(clip), texts[clip]) for clip in clips]


def test_lines_come_in_the_order_of_the_arguments(
    server: RunningServer, texts: dict[Path, str]
) -> None:
    clips = [CLIP, *references("cards")]
    longest_first = sorted(clips, key=lambda clip: clip.stat().st_size, reverse=True)
    order = [*longest_first, longest_first[-1], longest_first[1]]  # a file may be named twice
    assert transcribe(server, *order) == [(str(clip), texts[clip]) for clip in order]


def write_8_khz(samples: np.ndarray, path: Path) -> Path:
    soundfile.write(path, soxr.resample(samples, 16000, 8000, "VHQ"), 8000)
    return path


def write_44_khz_stereo(samples: np.ndarray, path: Path) -> Path:
    mono = soxr.resample(samples, 16000, 44100, "VHQ")
    soundfile.write(path, np.stack([1.5 * mono, 0.5 * mono], axis=1), 44100)
    return path


@pytest.mark.parametrize("write", [write_8_khz, write_44_khz_stereo])
def test_a_clip_at_another_rate_gives_the_text_of_its_original(
    server: RunningServer,
    texts: dict[Path, str],
    tmp_path: Path,
    write: Callable[[np.ndarray, Path], Path],
) -> None:
    originals = list(references("librivox"))
    copies = [write(soundfile.read(clip)[0], tmp_path / clip.name) for clip in originals]
    heard = transcribe(server, *copies)
    assert [fold(text) for _, text in heard] == [fold(texts[clip]) for clip in originals]


def test_a_clip_in_another_format_gives_exactly_the_text_of_its_original(
    server: RunningServer, texts: dict[Path, str], tmp_path: Path
) -> None:
    samples, sample_rate_hz = soundfile.read(SHORT_CLIP)
    formats = [("a.wav", "PCM_24"), ("b.wav", "FLOAT"), ("c.flac", "PCM_16"), ("d.aiff", "PCM_32")]
    for name, subtype in formats:
        soundfile.write(tmp_path / name, samples, sample_rate_hz, subtype=subtype)
    heard = transcribe(server, *(tmp_path / name for name, _ in formats))
    assert [text for _, text in heard] == [texts[SHORT_CLIP]] * len(formats)


def test_a_file_without_samples_has_an_empty_text(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "empty.wav"
    soundfile.write(path, np.zeros(0), 16000)
    assert transcribe(server, path) == [(str(path), "")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bad_file_is_reported_and_the_rest_goes_on(
    server: RunningServer, texts: dict[Path, str], tmp_path: Path, protocol: str
) -> None:
    missing, not_audio, broken = tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "c.wav"
    not_audio.write_text("words, but none that one can hear")
    soundfile.write(broken, np.full(16000, np.nan, np.float32), 16000, subtype="FLOAT")
    arguments = [missing, CLIP, not_audio, broken, SHORT_CLIP]
    result = run_client(server, *arguments, protocol=protocol)
    assert result.returncode == 1
    assert result.stdout == f"{CLIP}\t{texts[CLIP]}\n{SHORT_CLIP}\t{texts[SHORT_CLIP]}\n"
    errors = result.stderr.splitlines()
    assert errors[:2] == [
        f"{missing}: cannot read audio: No such file or directory",
        f"{not_audio}: cannot read audio: Format not recognised.",
    ]
    assert errors[2].startswith(f"{broken}: ")  # the server's reason, which its own tests hold
    assert len(errors) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_json_gives_an_object_a_line_with_timed_words(
    server: RunningServer, texts: dict[Path, str], protocol: str
) -> None:
    result = run_client(server, "--json", CLIP, SHORT_CLIP, protocol=protocol)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(Path(line["file"]), line["text"]) for line in lines] == [
        (clip, texts[clip]) for clip in (CLIP, SHORT_CLIP)
    ]
    for line in lines:
        words = line["words"]
        assert fold(" ".join(word["word"] for word in words)) == fold(line["text"])
        times = [time for word in words for time in (word["start_s"], word["end_s"])]
        assert times == sorted(times)
        assert 0 <= times[0] < times[-1] <= line["duration_s"] + 0.1


def test_every_option_reaches_the_server(server: RunningServer, texts: dict[Path, str]) -> None:
    options = ["--language", "en", "--task", "transcribe", "--priority", 0, "--deadline-ms", 60000]
    assert transcribe(server, *options, SHORT_CLIP) == [(str(SHORT_CLIP), texts[SHORT_CLIP])]


def test_an_option_that_the_model_refuses_is_reported(server: RunningServer) -> None:
    result = run_client(server, "--task", "sing", SHORT_CLIP)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{SHORT_CLIP}: ")
    assert "sing" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_cannot_be_reached_is_one_line(protocol: str) -> None:
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        given = command(url, CLIP, protocol=protocol)
        result = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    start = f"error: cannot reach a Triton server at {url} ({protocol}): "
    assert result.stderr.startswith(start)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_that_is_not_served_is_one_line(server: RunningServer, protocol: str) -> None:
    result = run_client(server, "--model", "no_such_model", CLIP, protocol=protocol)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: the server at ")
    assert result.stderr.endswith(" has no model 'no_such_model' that is ready\n")


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Let children be interrupted, also where this run is a shell's background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ctrl_c_stops_at_once_and_keeps_what_was_printed(
    server: RunningServer, protocol: str
) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    arguments = command(url, *[SHORT_CLIP] * 300, "--concurrency", 2, protocol=protocol)
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert first.startswith(f"{SHORT_CLIP}\t")
    assert process.returncode == 130
    assert errors == "stopped\n"
    assert rest.count("\n") < 100
