"""What the load generator is given: real clips as its input data, and defaults that yield to what a person says."""

from __future__ import annotations

import json
import platform
import wave
from pathlib import Path

import numpy as np
import pytest

from oasr_backend.triton import perf_analyzer
from oasr_backend.triton.installation import LaunchError


def write_wav(path: Path, samples: list[int], rate_hz: int = 16_000, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as clip:
        clip.setframerate(rate_hz)
        clip.setnchannels(channels)
        clip.setsampwidth(2)
        clip.writeframes(np.array(samples, np.int16).tobytes())
    return path


def test_each_clip_is_one_request_with_its_samples_and_their_number(tmp_path):
    clips = [write_wav(tmp_path / "a.wav", [0, 16384, -32768]), write_wav(tmp_path / "b.wav", [1])]
    written = perf_analyzer.write_input_data(clips, tmp_path / "cache" / "input.json")
    assert json.loads(written.read_text()) == {
        "data": [
            {
                "WAV": {"content": [0.0, 0.5, -1.0], "shape": [3]},
                "WAV_LENS": {"content": [3], "shape": [1]},
            },
            {
                "WAV": {"content": [3.1e-05], "shape": [1]},
                "WAV_LENS": {"content": [1], "shape": [1]},
            },
        ]
    }
    assert [path.name for path in written.parent.iterdir()] == ["input.json"]


def test_clip_of_another_form_is_refused_with_the_command_that_converts_it(tmp_path):
    clip = write_wav(tmp_path / "stereo.wav", [0, 0], rate_hz=44_100, channels=2)
    with pytest.raises(LaunchError) as caught:
        perf_analyzer.read_clip(clip)
    assert str(caught.value) == (
        f"{clip} has 44100 Hz, 2 channels, 16 bits, and a clip must have 16000 Hz, 1 channel, 16 bits. "
        f"Convert: sox {clip} -r 16000 -c 1 -b 16 OUT.wav"
    )


@pytest.mark.parametrize("content", [b"", b"text", b"RIFF\x24\x00\x00\x00WAVEfmt "])
def test_what_is_no_wav_file_is_named(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(LaunchError, match=r"a\.wav is no WAV file that can be read"):
        perf_analyzer.read_clip(tmp_path / "a.wav")


def test_folder_without_clips_is_refused(tmp_path):
    with pytest.raises(LaunchError) as caught:
        perf_analyzer.parse_arguments(["--clips", str(tmp_path)])
    assert str(caught.value) == (
        f"{tmp_path} holds no .wav file. Name a folder of 16 kHz mono clips: --clips DIR"
    )


def test_real_clips_are_sent_by_default_and_other_flags_pass_through():
    load = perf_analyzer.parse_arguments(["-u", "localhost:9001", "--verbose"])
    assert (len(load.clips), load.is_sequences) == (5, False)
    assert load.flags == ["-u", "localhost:9001", "--verbose"]


def test_a_sequence_is_a_clip_in_requests_of_160_ms(tmp_path):
    clip = write_wav(tmp_path / "a.wav", [0] * 2560 + [16384] * 10)
    written = perf_analyzer.write_input_data([clip], tmp_path / "input.json", is_sequences=True)
    [[first, last]] = json.loads(written.read_text())["data"]
    assert first["WAV_LENS"] == {"content": [2560], "shape": [1]}
    assert last["WAV"] == {"content": [0.5] * 10, "shape": [10]}


def test_sequences_go_to_the_model_of_streams_with_clips_that_it_knows():
    load = perf_analyzer.parse_arguments(["--sequences"])
    assert {clip.parent.name for clip in load.clips} == {"commands"}
    assert perf_analyzer.with_defaults(load)[:2] == ["-m", "asr_streaming"]


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ([], "-m asr_offline -i grpc -u localhost:8001 --concurrency-range 4"),
        (["-u", "host:1", "--model-name=asr_streaming"], "-i grpc --concurrency-range 4"),
        (["--request-rate-range=2:10"], "-m asr_offline -i grpc -u localhost:8001"),
    ],
)
def test_default_yields_to_any_flag_of_its_kind(given, ours):
    load = perf_analyzer.Load([], False, given)
    assert perf_analyzer.with_defaults(load) == [*ours.split(), *given]


def test_perf_analyzer_on_path_is_taken_where_it_runs(tmp_path, monkeypatch):
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert perf_analyzer.find_perf_analyzer(tmp_path / "cache") == [str(program)]


def test_system_without_a_newer_release_of_its_own_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    with pytest.raises(LaunchError) as caught:
        perf_analyzer.unpack_libraries(tmp_path / "libraries")
    assert str(caught.value) == (
        f"perf_analyzer needs glibc 2.38, and this machine (fedora) has {platform.libc_ver()[1]}. Run it on Debian 13, "
        "Ubuntu 24.04 or newer, or put one that runs here on PATH"
    )
    assert list(tmp_path.iterdir()) == []
