"""The command that compares policies: what it prints, writes and refuses."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

from oasr_backend.simulation import experiments
from oasr_backend.simulation.cases import Lab
from oasr_backend.simulation.experiments.claims import Claim, at_most, below, between

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate.py"
SMALL = ["--requests", "60", "--seeds", "2", "--processes", "1"]


@pytest.fixture
def simulate(monkeypatch):
    """Return the script's main, to be called with its arguments."""
    spec = importlib.util.spec_from_file_location("simulate_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["simulate.py", *SMALL, *arguments])
        return script.main()

    call.script = script
    return call


def test_a_table_holds_every_policy_and_fcfs_at_its_best_batch_size(simulate, capsys, tmp_path):
    path = tmp_path / "figures.csv"
    arguments = ["--lengths", "ljspeech", "--service", "gpu", "--rates", "0.5", "1.5"]
    assert simulate(*arguments, "--policies", "fcfs", "cost", "--csv", str(path)) == 0
    printed = capsys.readouterr().out
    assert printed.count("fcfs, best cap") == 2
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 2  # rates, policies and seeds
    assert {row["rate"] for row in rows} == {"0.5", "1.5"}
    assert all(float(row["p50_s"]) <= float(row["p99_s"]) <= float(row["max_s"]) for row in rows)


@pytest.mark.parametrize("workload", ["burst", "drift-load", "drift-lengths"])
def test_every_workload_runs(simulate, capsys, workload):
    arguments = ["--workload", workload, "--lengths", "ljspeech", "--service", "10+2.1"]
    assert simulate(*arguments, "--policies", "adaptive", "--rates", "1.0") == 0
    assert "adaptive" in capsys.readouterr().out


def test_a_trace_with_tenants_shows_what_each_got(simulate, capsys, tmp_path):
    path = tmp_path / "trace.csv"
    lines = [f"{i * 0.01},{2 + i % 5},{'loud' if i % 4 else 'quiet'}" for i in range(60)]
    path.write_text("time_s,duration_s,tenant\n" + "\n".join(lines))
    assert simulate("--trace", str(path), "--service", "cpu", "--policies", "cost") == 0
    printed = capsys.readouterr().out
    assert "loud" in printed
    assert "quiet" in printed


def test_a_bad_trace_is_one_line_and_exit_status_2(simulate, capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time_s,duration_s\n0,x\n")
    assert simulate("--trace", str(path)) == 2
    assert capsys.readouterr().err == (
        f"error: {path}:2: duration_s is 'x'; it must be a number of seconds: correct the line\n"
    )


def test_plots_without_matplotlib_say_what_to_install(simulate, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert simulate("--plots", str(tmp_path)) == 2
    assert capsys.readouterr().err == (
        "error: plots need matplotlib, which is not installed: run "
        ".venv/bin/pip install --no-deps --require-hashes -r requirements/plot.txt\n"
    )


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_of_an_experiment_is_1_where_a_claim_fails(
    simulate, capsys, monkeypatch, holds, status
):
    claim = Claim("water is wet", holds, "yes")
    monkeypatch.setitem(experiments.EXPERIMENTS, "padding", lambda _: iter(["a line", claim]))
    assert simulate("--experiment", "padding") == status
    printed = capsys.readouterr().out
    assert f"{'PASS' if holds else 'FAIL'}  water is wet: yes" in printed
    assert f"{int(holds)} of 1 claims hold" in printed


def test_claims_compare_what_was_measured():
    values = {"a": 0.5, "b": 1.0}
    assert at_most("it is", values, 1.0) == Claim("it is at most 1", True, "1.000 (b)")
    assert not at_most("it is", values, 0.99).holds
    assert not below("it is", values, 1.0).holds
    assert between("it is", values, 0.5, 1.0).holds
    assert not between("it is", values, 0.6, 1.0).holds


@pytest.mark.parametrize("name", ["cost", "drift"])
def test_experiments_run_at_any_size(name):
    lines = list(experiments.EXPERIMENTS[name](Lab(num_requests=40, num_seeds=1)))
    assert any(isinstance(line, Claim) for line in lines)
