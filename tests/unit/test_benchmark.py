"""What load tests are made of: utterances, arrivals, figures and the file of results."""

from __future__ import annotations

import platform
import random

import numpy as np
import pytest

from oasr_backend.benchmark import speech
from oasr_backend.benchmark.arrivals import Due, draw, offered, read_trace
from oasr_backend.benchmark.figures import Figures, figures_of, median_of, ratio_of, spread_of
from oasr_backend.benchmark.page import processor, write_page
from oasr_backend.benchmark.repositories import copy_model
from oasr_backend.benchmark.results import Cell, Results, write_csv
from oasr_backend.benchmark.ruler import Answer
from oasr_backend.errors import ConfigError
from tests.e2e.server_fixture import SERVED_MODELS


def test_utterances_have_the_asked_length_and_only_samples_of_the_clips():
    clips = [np.full(1000, 0.5, np.float32), np.full(3000, 0.25, np.float32)]
    for num_samples in (0, 1, 999, 5000):
        made = speech.utterance(clips, num_samples, random.Random(1))
        assert len(made) == num_samples
        assert made.max(initial=0.0) <= 0.5
    assert set(np.unique(speech.utterance(clips, 8000, random.Random(2)))) >= {0.0, 0.25, 0.5}


def test_a_pool_is_drawn_from_its_seed():
    clips = [np.ones(1600, np.float32)]
    one, same, other = (speech.pool(clips, lambda r: r.uniform(1, 2), 4, s) for s in (1, 1, 2))
    assert [len(u) for u in one] == [len(u) for u in same] != [len(u) for u in other]


def test_arrivals_are_spaced_as_their_kind_says():
    even = draw("constant", 4, 2.0, 3, seed=1)
    assert [due.time_s for due in even] == [0.5, 1.0, 1.5, 2.0]
    assert {due.time_s for due in draw("burst", 4, 0.0, 3, seed=1)} == {0.0}
    poisson = draw("poisson", 4000, 10.0, 3, seed=1)
    assert offered(poisson) == pytest.approx(10.0, rel=0.05)
    assert {due.utterance for due in poisson} == {0, 1, 2}
    assert poisson == draw("poisson", 4000, 10.0, 3, seed=1)


def test_a_trace_names_times_and_files(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"")
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,file\n2,b.wav\n0.5,a.wav\n3,b.wav\n")
    arrivals, paths = read_trace(trace)
    assert arrivals == [Due(0.5, 1), Due(2.0, 0), Due(3.0, 0)]
    assert paths == [tmp_path / "b.wav", tmp_path / "a.wav"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,file\n1,a.wav\n", "trace.csv:1: the header must be time_s,file: correct it"),
        ("time_s,file\n", "trace.csv holds no arrivals: add a line"),
        (
            "time_s,file\n-1,a.wav\n",
            "trace.csv:2: time_s is '-1'; it must be seconds from 0 to 86400",
        ),
        ("time_s,file\n1e9,a.wav\n", "trace.csv:2: time_s is '1e9'; it must be seconds from 0 to"),
        ("time_s,file\n1\n", "trace.csv:2 must have a time and a file: correct it"),
        ("time_s,file\n1,a.wav,b.wav\n", "trace.csv:2 must have a time and a file: correct it"),
        (
            "time_s,file,file\n1,a.wav,b\n",
            "trace.csv:1: the header must be time_s,file: correct it",
        ),
        ("time_s,file\n1,no.wav\n", "trace.csv names 'no.wav', which is no file: correct the path"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path, text, message):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_trace(trace)
    assert message in str(error.value)


def test_latencies_count_from_the_intended_time():
    answers = [
        Answer(0, due_s=1.0, sent_s=1.5, done_s=2.0, text="a"),
        Answer(1, due_s=2.0, sent_s=2.0, done_s=5.0, text="x"),
        Answer(0, due_s=3.0, sent_s=3.0, done_s=3.5, text="", error="refused"),
    ]
    figures = figures_of(answers, ["a", "b"])
    assert (figures.requests, figures.errors, figures.differing) == (3, 1, 1)
    assert figures.p50_s == 2.0
    assert figures.max_s == 3.0
    assert figures.throughput == 0.5
    assert figures.lag_p99_s == pytest.approx(0.49)


def test_ratios_are_those_of_the_same_repeats():
    ours, theirs = [figures(v) for v in (1.0, 4.0, 9.0)], [figures(v) for v in (2.0, 4.0, 3.0)]
    assert ratio_of(ours, theirs, "p99_s") == 1.0
    assert ratio_of(ours, theirs[:1], "p99_s") == 0.5


def figures(value, errors=0):
    return Figures(10, value, value, value, value, value, value, value, 0.0, errors, errors)


def test_repeats_give_their_median_their_spread_and_all_of_their_errors():
    runs = [figures(1.0), figures(5.0, errors=1), figures(2.0, errors=1)]
    assert median_of(runs).p99_s == 2.0
    assert median_of(runs).errors == median_of(runs).differing == 2
    assert spread_of(runs, "p50_s") == (1.0, 5.0)


def test_results_are_found_again(tmp_path):
    path = tmp_path / "folder" / "runs.jsonl"
    cell = Cell("ours", "uniform", "poisson", 0.8, 12.0, 0)
    Results(path, Figures).add(cell, figures(1.5))
    results = Results(path, Figures)
    assert results.find(cell) == figures(1.5)
    assert results.find(Cell("ours", "uniform", "poisson", 0.8, 13.0, 0)) is not None
    assert results.find(Cell("ours", "uniform", "poisson", 0.8, 12.0, 1)) is None
    assert results.of("ours", "uniform", "poisson", 0.8) == [figures(1.5)]
    write_csv(tmp_path / "runs.csv", results)
    header, line = (tmp_path / "runs.csv").read_text().splitlines()
    assert header.startswith("system,lengths,kind,load,rate,repeat,requests,p25_s")
    assert line.startswith("ours,uniform,poisson,0.8,12.0,0,10,1.5")


def test_a_copied_model_has_the_options_that_were_asked_for(tmp_path):
    source = SERVED_MODELS / "asr_offline"
    parameters = {"schedule_policy": "sjf", "device": None, "model_family": "ctc"}
    folder = copy_model(source, tmp_path, "asr", parameters, (1, 3), 500, 2)
    text = (folder / "config.pbtxt").read_text()
    for field in (
        "max_batch_size: 16",
        "preferred_batch_size: [ 1, 3 ]",
        "max_queue_delay_microseconds: 500",
        "count: 2",
        'key: "schedule_policy" value { string_value: "sjf" }',
        'key: "model_family" value { string_value: "ctc" }',
    ):
        assert text.count(field) == 1
    assert 'key: "device"' not in text


def test_a_processor_is_named_with_what_decides_how_fast_it_multiplies():
    cpuinfo = "".join(
        f"processor\t: {core}\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx avx2 avx512f fma avx512_vnni\n"
        for core in range(2)
    )
    assert processor(cpuinfo) == "AMD EPYC (avx2 avx512f avx512_vnni)"
    assert processor("") == platform.machine()


def test_a_page_has_what_its_steps_printed_and_names_those_that_have_not_run(tmp_path):
    steps = tmp_path / "steps"
    (steps / "load").mkdir(parents=True)
    (steps / "load.txt").write_text("$ load\n12 req/s\n")
    (steps / "load" / "whisper-latency.png").write_bytes(b"a plot")
    (steps / "load" / "whisper-unused.png").write_bytes(b"another plot")
    template = tmp_path / "template.md"
    template.write_text(
        "{{machine}}\n![a](performance/load-latency.png)\n![b](performance/other.png)\n{{load}}\n{{wer}}\n"
    )
    write_page(template, steps, tmp_path / "docs" / "page.md")
    lines = (tmp_path / "docs" / "page.md").read_text().splitlines()
    assert "cores in use" in lines[0]
    assert lines[-5:] == [
        "![a](performance/load-latency.png)",
        "performance/other.png: not drawn yet",
        "$ load",
        "12 req/s",
        "not run on this machine: ./scripts/benchmark.sh wer",
    ]
    [plot] = (tmp_path / "docs" / "performance").iterdir()
    assert (plot.name, plot.read_bytes()) == ("load-latency.png", b"a plot")
