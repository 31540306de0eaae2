"""The load test on real servers: the ruler against one whose latencies can be calculated, and the quick form of the
command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
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


def running(folder):
    """Return the processes whose command line names a folder, by their number."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(str(folder) in word for word in words):
            found[int(place.name)] = Path(words[0]).name
    return found


@contextmanager
def load_test(folder, *arguments):
    """Start a load test into a folder; whatever is left of it in the end is killed."""
    command = [sys.executable, ROOT / "scripts" / "load_test.py", "--output", folder, *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        for number in running(folder):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()
        for region in Path("/dev/shm").glob(f"oasr_{process.pid}_*"):
            region.unlink()


def wait_until(condition, timeout_s=120):
    ends_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.1)


LONG = ("--systems", "ours", "--utterances", "4", "--repeats", "50", "--backlog", "60", "--loads")


def under_load(folder):
    path = folder / "conformer.jsonl"
    return path.exists() and len(path.read_text().splitlines()) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_stops_its_servers_and_keeps_what_it_has(tmp_path, number):
    with load_test(tmp_path, *LONG) as process:
        wait_until(lambda: under_load(tmp_path))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "stopped: --resume goes on from here"
        assert running(tmp_path) == {}
    assert (tmp_path / "conformer.jsonl").read_text().endswith("}\n")


def test_nothing_is_left_of_a_server_whose_parent_was_killed_under_load(tmp_path):
    with load_test(tmp_path, *LONG) as process:
        wait_until(lambda: under_load(tmp_path))
        process.kill()
        process.wait()
        wait_until(lambda: running(tmp_path) == {}, timeout_s=30)


def test_a_server_that_dies_under_streams_is_no_result(tmp_path):
    arguments = ("--streams", "4", "--seconds", "6", "--repeats", "9", "--utterances", "1")
    with load_test(tmp_path, *arguments, "--engine", "measure_costs_s=0") as process:
        wait_until((tmp_path / "streams.jsonl").exists)
        for child, name in running(tmp_path).items():
            if name == "tritonserver":
                os.kill(child, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2
        assert re.search(r"ours, 4 streams, repeat \d: \d+ pieces were not answered: the", errors)
    lines = (tmp_path / "streams.jsonl").read_text().splitlines()
    assert all(json.loads(line)["figures"]["errors"] == 0 for line in lines)
