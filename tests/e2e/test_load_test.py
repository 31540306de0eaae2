"""The load test on real servers: the ruler against one whose latencies can be calculated, and the quick form of the
command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from statistics import median

import numpy as np
import pytest

from oasr_backend.benchmark.arrivals import draw
from oasr_backend.benchmark.figures import figures_of
from oasr_backend.benchmark.ruler import drive
from oasr_backend.benchmark.systems import Server, Triton
from tests.e2e.server_fixture import ROOT, TEST_MODELS

SERVICE_S = 0.05
SYSTEMS = ("stock:1-2-4", "ours", "ours-shm", "in-process")


def test_a_server_that_falls_behind_is_charged_for_the_wait(tmp_path):
    """50 ms a request, one due every 25 ms: number n waits for n others, and is measured from when it was due."""
    utterances = [np.zeros(100 + n, np.float32) for n in range(5)]

    async def measure():
        system = Triton("steady", Server(TEST_MODELS / "steady", tmp_path / "log"), "steady")
        await system.start()
        try:
            await system.transcribe(utterances[0])
            arrivals = draw("constant", 30, 40.0, 5, seed=1)
            return await drive(arrivals, lambda n: system.transcribe(utterances[n]), lambda: None)
        finally:
            await system.stop()

    answers = asyncio.run(measure())
    assert [answer.text for answer in answers] == [str(100 + a.utterance) for a in answers]
    late_s = [a.latency_s - SERVICE_S - 0.025 * n for n, a in enumerate(answers)]
    assert min(late_s) > -0.01, "no request can have been faster than the server"
    assert median(late_s) < 0.25, "of the last one's 0.8 s the most is the queue's"
    figures = figures_of(answers, [str(100 + n) for n in range(5)])
    assert figures.errors == figures.differing == 0
    assert figures.throughput == pytest.approx(1 / SERVICE_S, rel=0.3)


def test_the_quick_form_measures_systems_in_turn_and_keeps_what_it_has(tmp_path):
    command = [
        *(sys.executable, ROOT / "scripts" / "load_test.py", "--quick", "--output", tmp_path),
        *("--systems", *SYSTEMS, "--engine", "measure_costs_s=1"),
    ]
    first = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    for system in SYSTEMS:
        tables = [line.split() for line in lines if ", alone: " not in line]
        backlog, ratios, load = (cells for cells in tables if system in cells[:2])
        assert ratios[1 + SYSTEMS.index(system)] == "1.00", "in times its own"
        assert backlog[-2:] == ["0", "0"], "no errors, no texts that differ"
        assert load[0] == "0.80"
    runs = [json.loads(line) for line in (tmp_path / "conformer.jsonl").read_text().splitlines()]
    assert len(runs) == 2 * len(SYSTEMS)
    assert len((tmp_path / "conformer.csv").read_text().splitlines()) == 2 * len(SYSTEMS) + 1
    command.append("--resume")
    again = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert again.stdout.splitlines() == lines, "what was measured is not measured anew"


def test_live_streams_are_paced_checked_and_timed(tmp_path):
    command = [
        *(sys.executable, ROOT / "scripts" / "load_test.py", "--streams", "2", "8"),
        *("--seconds", "3", "--repeats", "1", "--utterances", "4", "--output", tmp_path),
        *("--engine", "measure_costs_s=0"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    two, eight = (line.split() for line in done.stdout.splitlines()[-2:])
    assert two[:3] == ["2", "ours", "8"], "4 chunks of 640 ms in 3 s, of each stream"
    assert eight[:3] == ["8", "ours", "32"]
    assert two[-3:-1] == eight[-3:-1] == ["0", "0"], "no errors, no texts that differ"


def test_a_server_that_is_not_there_is_named_at_once(tmp_path):
    command = [
        *(sys.executable, ROOT / "scripts" / "load_test.py", "--streams", "2"),
        *("--url", "localhost:9", "--output", tmp_path),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no Triton server answers at localhost:9 (UNAVAILABLE): start one" in done.stderr
