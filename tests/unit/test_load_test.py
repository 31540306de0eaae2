"""What scripts/load_test.py refuses at once, and what becomes of the folder that it measures into."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from oasr_backend.benchmark import flags, speech
from oasr_backend.benchmark.best import best_system
from oasr_backend.benchmark.figures import Figures
from oasr_backend.benchmark.folder import Folder
from oasr_backend.benchmark.line_up import LineUp
from oasr_backend.benchmark.results import Cell, Results
from oasr_backend.benchmark.sweep import Sweep, is_measured
from oasr_backend.errors import ConfigError

SETTINGS = {"model": "conformer", "seed": 1, "options": [("beam_size", "1")]}
CELL = Cell("ours", "librispeech", "burst", 0.0, 0.0, 0)
RUN = Figures(*range(20, 31))


class TestFlags:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--requests", "0"], "0 is not from 1 to 1e+06"),
            (["--backlog", "-3"], "-3 is not from 1 to 1e+06"),
            (["--repeats", "0"], "0 is not from 1 to 1000"),
            (["--utterances", "0"], "0 is not from 1 to 10000"),
            (["--loads", "nan"], "nan is not from 0.001 to 100"),
            (["--loads", "1e300"], "1e300 is not from 0.001 to 100"),
            (["--streams", "0"], "0 is not from 1 to 10000"),
            (["--seconds", "1e30"], "1e30 is not from 0.1 to 3600"),
            (["--piece-ms", "-1"], "-1 is not from 1 to 10000"),
            (["--options", "foo"], "'foo' is not as NAME=VALUE"),
            (["--url", "localhost:1"], "--url is for --streams"),
            (["--systems", "ours", "ours"], "--systems names a system twice"),
            (["--reference", "nope"], "--reference nope is none of --systems"),
        ],
    )
    def test_what_cannot_be_measured_is_refused(self, capsys, arguments, text):
        with pytest.raises(SystemExit) as caught:
            flags.parse(arguments, "")
        assert caught.value.code == 2
        assert text in capsys.readouterr().err

    def test_streams_are_of_ours_unless_others_are_named(self):
        assert flags.parse(["--streams", "2"], "").systems == ["ours"]
        assert flags.parse(["--streams", "2", "--systems", "in-process"], "").systems == [
            "in-process"
        ]


class TestLineUp:
    def line_up(self, tmp_path, options=(), engine=()):
        return LineUp("ctc", dict(options), (1, 2, 4), dict(engine), None, tmp_path)

    @pytest.mark.parametrize(
        "name",
        ["stock:x", "stock:1:2:3:4:5", "stock:1:0:0", "stock:0", "stock:1:-5", "ours:nope"],
    )
    def test_a_name_that_cannot_be_read_is_refused(self, tmp_path, name):
        with pytest.raises(ConfigError, match=f"system is '{name}', which cannot be read"):
            self.line_up(tmp_path).system(name)
        assert not list(tmp_path.iterdir())

    def test_so_is_one_of_streams(self, tmp_path):
        with pytest.raises(ConfigError, match="sherpa-onnx:1:x', which cannot be read"):
            self.line_up(tmp_path).streams("sherpa-onnx:1:x", None)
        with pytest.raises(ConfigError, match="it must be one of ours, in-process, silent"):
            self.line_up(tmp_path).streams("stock", None)

    def test_options_that_nobody_has_are_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="--options foo is unknown; known are at_capacity"):
            self.line_up(tmp_path, options={"foo": "1"})
        with pytest.raises(ConfigError, match="--engine foo is unknown; known are adaptive_kappa"):
            self.line_up(tmp_path, engine={"foo": "1"})


class TestClips:
    @pytest.mark.parametrize("content", [b"", b"RIFF", b"no audio at all"])
    def test_what_is_no_audio_is_named(self, tmp_path, content):
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.wav cannot be read as audio"):
            speech.read_clips([tmp_path / "a.wav"])

    @pytest.mark.parametrize(("rate_hz", "channels"), [(8000, 1), (16000, 2)])
    def test_so_is_audio_of_another_form(self, tmp_path, rate_hz, channels):
        soundfile.write(tmp_path / "a.wav", np.zeros((160, channels)), rate_hz)
        with pytest.raises(ConfigError, match=f"has {channels} channels of {rate_hz} Hz: use one"):
            speech.read_clips([tmp_path / "a.wav"])


class TestFolder:
    def test_two_load_tests_do_not_share_it(self, tmp_path):
        with Folder(tmp_path), pytest.raises(ConfigError, match="in use by another load test"):
            Folder(tmp_path).__enter__()
        with Folder(tmp_path):
            pass

    def test_a_path_that_is_no_folder_is_named(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="file cannot be written to"):
            Folder(tmp_path / "file").__enter__()

    def test_a_new_sweep_forgets_the_last_one_and_touches_nothing_else(self, tmp_path):
        own = ["conformer.jsonl", "streams.jsonl", "conformer-alone.csv"]
        strange = ["mine.jsonl", "notes.txt", "servers/notes.txt"]
        model = tmp_path / "servers" / "ours" / "repository" / "asr"
        model.mkdir(parents=True)
        (model / "config.pbtxt").touch()
        for name in own + strange:
            (tmp_path / name).touch()
        with Folder(tmp_path) as folder:
            folder.begin(SETTINGS, resume=False)
        assert not any((tmp_path / name).exists() for name in [*own, "servers/ours"])
        assert all((tmp_path / name).exists() for name in strange)

    def test_it_is_resumed_with_the_settings_that_it_was_measured_with(self, tmp_path):
        with Folder(tmp_path) as folder:
            folder.begin(SETTINGS, resume=False)
            (tmp_path / "conformer.jsonl").touch()
            folder.begin(SETTINGS, resume=True)
            assert (tmp_path / "conformer.jsonl").exists()
            with pytest.raises(ConfigError, match="was measured with seed 1, not 9: leave --resum"):
                folder.begin({**SETTINGS, "seed": 9}, resume=True)
            (tmp_path / "settings.json").write_text("[")
            with pytest.raises(ConfigError, match="holds no settings"):
                folder.begin(SETTINGS, resume=True)


class TestResults:
    def written(self, path):
        results = Results(path, Figures)
        results.add(CELL, RUN)
        return results

    def test_a_last_line_that_was_not_written_whole_is_measured_again(self, tmp_path):
        path = tmp_path / "conformer.jsonl"
        self.written(path)
        whole = path.read_bytes()
        path.write_bytes(whole + whole[:-30])
        results = Results(path, Figures)
        assert [cell for cell, _ in results] == [CELL]
        assert path.read_bytes() == whole, "the next line begins on a line of its own"

    @pytest.mark.parametrize(
        "line", [b"[]", b"{}", b'{"cell":{}}', b"\xff\xfe", b'{"cell": {"a": 1}, "figures": {}}']
    )
    def test_a_line_that_is_no_run_is_named(self, tmp_path, line):
        path = tmp_path / "conformer.jsonl"
        self.written(path)
        path.write_bytes(path.read_bytes() + line + b"\n")
        with pytest.raises(ConfigError, match=r"conformer\.jsonl:2 holds no run"):
            Results(path, Figures)

    def test_runs_of_another_size_are_not_taken_for_these(self, tmp_path):
        results = self.written(tmp_path / "conformer.jsonl")
        assert is_measured(Sweep("librispeech", (), "ours", 1, 20, 1), ["ours"], results)
        with pytest.raises(ConfigError, match="runs of 20 requests, not 30: leave --resume out"):
            is_measured(Sweep("librispeech", (), "ours", 1, 30, 1), ["ours"], results)

    def test_the_best_of_nothing_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="holds no backlog"):
            best_system(Results(tmp_path / "none.jsonl", Figures))

    def test_a_run_is_kept_as_one_line_of_json(self, tmp_path):
        path = tmp_path / "conformer.jsonl"
        self.written(path)
        [line] = path.read_text().splitlines()
        assert json.loads(line)["figures"]["requests"] == 20
