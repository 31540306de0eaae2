"""The command that compares policies: what it prints, writes and refuses."""

import csv
import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from oasr_backend.simulation import experiments, plots
from oasr_backend.simulation.cases import Lab
from oasr_backend.simulation.experiments.claims import Claim, at_most, below, between
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.sweep import Plan, sweep

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate.py"
SMALL = ["--requests", "60", "--seeds", "2", "--processes", "1"]
ONE = ["--lengths", "ljspeech", "--service", "gpu", "--policies", "fcfs", "--rates", "1.0"]


@pytest.fixture
def simulate(monkeypatch):
    """Return the script's main, to be called with its arguments."""
    spec = importlib.util.spec_from_file_location("simulate_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(*arguments):
        own_size = {"--trace", "--requests", "--seeds"} & set(arguments)
        size = ["--processes", "1"] if own_size else SMALL
        monkeypatch.setattr(sys, "argv", ["simulate.py", *size, *arguments])
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


@pytest.mark.parametrize(
    ("workload", "more"),
    [
        ("burst", ["--lengths", "ljspeech"]),
        ("drift-load", []),
        ("drift-lengths", ["--rates", "1.0"]),
    ],
)
def test_every_workload_runs(simulate, capsys, workload, more):
    arguments = ["--workload", workload, *more, "--service", "10+2.1"]
    assert simulate(*arguments, "--policies", "adaptive") == 0
    assert "adaptive" in capsys.readouterr().out


@pytest.fixture
def trace(tmp_path):
    """Return a trace of two tenants."""
    path = tmp_path / "trace.csv"
    lines = [f"{i * 0.01},{2 + i % 5},{'loud' if i % 4 else 'quiet'}" for i in range(60)]
    path.write_text("time_s,duration_s,tenant\n" + "\n".join(lines))
    return str(path)


def test_a_trace_is_run_once_and_shows_what_each_tenant_got(simulate, capsys, tmp_path, trace):
    figures = tmp_path / "figures.csv"
    arguments = ["--trace", trace, "--service", "cpu", "--policies", "cost"]
    assert simulate(*arguments, "--tenant-fairness", "--csv", str(figures)) == 0
    printed = capsys.readouterr().out
    assert "trace trace.csv, cpu service; fcfs works off" in printed
    assert " rate policy         tenant        arrived      p50      p90  alone p50" in printed
    with figures.open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["policy"], row["seed"], row["tenant"], row["padding"] != "") for row in rows]
    assert found == [
        (policy, "0", tenant, not tenant)
        for policy in ("cost", "fcfs, best cap")
        for tenant in ("", "loud", "quiet")
    ]
    assert float(rows[2]["alone_p50_s"]) <= float(rows[2]["p50_s"])


def test_the_options_of_a_server_are_the_simulations(simulate, capsys, tmp_path):
    arguments = ["--preferred-batch-size", "1", "2", "4", "--fixed-window-frames", "3000"]
    options = ["--option", "cost_exponent=0", "--option", "max_wait_time=0.2"]
    path = tmp_path / "figures.csv"
    assert simulate(*ONE, *arguments, *options, "--csv", str(path)) == 0
    assert "at cap 4\n" in capsys.readouterr().out
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["cap"] for row in rows} == {"4"}
    # Every row costs its window, whatever runs together: 30 s beside a mean length of about 6.57 s.
    assert len({row["padding"] for row in rows}) == 2  # seeds
    assert all(4 < float(row["padding"]) < 6 for row in rows)


def error_of(simulate, capsys, *arguments):
    assert simulate(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--trace", "t.csv", "--rates", "1", "--seeds", "2"],
            "--rates and --seeds would have no effect with --trace, which brings its own: leave one of them out",
        ),
        (
            [
                "--trace",
                "t.csv",
                "--workload",
                "steady",
                "--lengths",
                "uniform",
                "--tenants",
                "a=1",
            ],
            (
                "--workload and --lengths and --tenants would have no effect with --trace, which brings its own: "
                "leave one of them out"
            ),
        ),
        (
            ["--experiment", "cost", "--cap", "8", "--csv", "f.csv"],
            "--cap and --csv would have no effect with --experiment: leave one of them out",
        ),
        (
            ["--workload", "burst", "--rates", "1"],
            "--rates would have no effect with --workload burst, whose loads are fixed: leave one of them out",
        ),
        (
            ["--workload", "drift-lengths", "--lengths", "uniform"],
            (
                "--lengths would have no effect with --workload drift-lengths, which brings its own: "
                "leave one of them out"
            ),
        ),
        (
            ["--trace", "t.csv", "--plots", "p"],
            (
                "--plots draws latency against load, and a trace has one load only: leave --plots out (--csv has the "
                "figures)"
            ),
        ),
        (
            ["--workload", "burst", "--plots", "p"],
            (
                "--plots draws latency against load, and --workload burst has one load only: leave --plots out "
                "(--csv has the figures)"
            ),
        ),
        (
            ["--tenant-fairness"],
            "tenant_fairness needs tenants: add --tenants, or a --trace that has some",
        ),
        (
            ["--option", "tenant_weights=a=2"],
            "tenant_weights would have no effect: add --tenant-fairness",
        ),
        (
            ["--option", "max_batch_size=2"],
            "--option max_batch_size=2: it has a flag of its own: use --cap",
        ),
        (
            ["--option", "job_size=vad"],
            (
                "--option job_size=vad: nobody knows of a simulated clip how much of it is speech: choose frames or "
                "tokens"
            ),
        ),
        (
            ["--option", "max_waiting=5"],
            (
                "--option max_waiting=5: the simulation has nothing for it; it must be one of cost_exponent, "
                "cost_margin, fixed_window_frames, job_size, kappa, length_bucket_ratio, length_window_factor, "
                "max_batch_frames, max_offline_pad_ratio, max_tokens, max_wait_time, parallel_batches, "
                "tenant_fairness, tenant_weights: correct or remove it"
            ),
        ),
        (
            ["--max-wait-time", "1", "--option", "max_wait_time=2"],
            "max_wait_time is given twice, as '1' and '2': give one",
        ),
        (["--max-wait-time", "soon"], "max_wait_time is 'soon'; it must be a number: correct it"),
        (
            ["--preferred-batch-size", "32"],
            (
                "preferred_batch_size holds 32; every size must be from 1 to max_batch_size (16): drop it or raise "
                "max_batch_size"
            ),
        ),
        (
            ["--policies", "lifo"],
            (
                "schedule_policy is 'lifo'; it must be one of adaptive, bucket, cost, fcfs, hrrn, sjf, window: choose "
                "one of them"
            ),
        ),
        (
            ["--csv", "/nonexistent/f.csv"],
            (
                "/nonexistent/f.csv cannot be written (No such file or directory): make its folder and see that it "
                "may be written, or name another"
            ),
        ),
    ],
)
def test_what_would_be_ignored_or_fail_late_is_refused_at_once(simulate, capsys, arguments, error):
    assert error_of(simulate, capsys, *arguments) == error


def test_fairness_is_refused_where_a_trace_names_no_tenant(simulate, capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time_s,duration_s\n0,1\n")
    assert error_of(simulate, capsys, "--trace", str(path), "--tenant-fairness") == (
        f"tenant_fairness needs tenants, and {path} names none: add a column tenant, or leave it out"
    )


def test_a_folder_of_plots_that_is_a_file_is_refused_at_once(
    simulate, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(simulate.script, "load_pyplot", lambda: None)
    path = tmp_path / "plots"
    path.touch()
    assert error_of(simulate, capsys, "--plots", str(path)) == (
        f"{path} cannot be written (File exists): make its folder and see that it may be written, or name another"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--service", "-10+2.1"],
            "-10+2.1 begins with a minus: no value here is below 0",
        ),
        (["--rates", "inf"], "argument --rates: inf is not above 0 and below inf"),
        (
            ["--tenants", "loud=8,loud=1"],
            "argument --tenants: 'loud=8,loud=1' names a tenant twice, or with an empty name",
        ),
        (
            ["--tenants", "=1"],
            "argument --tenants: '=1' names a tenant twice, or with an empty name",
        ),
        (["--option", "kappa"], "argument --option: 'kappa' is not as cost_exponent=0.5"),
    ],
)
def test_a_value_that_reads_as_nothing_is_refused(simulate, capsys, arguments, error):
    with pytest.raises(SystemExit) as left:
        simulate(*arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {error}\n")


def test_plots_are_named_after_workload_lengths_and_service(tmp_path, monkeypatch):
    pyplot = MagicMock()
    pyplot.subplots.return_value = figure, panels = MagicMock(), [MagicMock() for _ in range(3)]
    monkeypatch.setattr(plots, "load_pyplot", lambda: pyplot)
    plan = Plan("steady", ["ljspeech"], {"a/b+c.json": SERVICES["gpu"]}, [1.0], ["fcfs"])
    (rows,) = sweep(plan, Lab(num_requests=20, num_seeds=1))
    assert plots.plot_latencies(tmp_path, rows).name == "latency-steady-ljspeech-a-b-c.json.png"
    (title,) = figure.suptitle.call_args.args
    assert title.startswith("steady, ljspeech lengths, a/b+c.json service, batches of up to 16")
    assert panels[0].plot.call_count == 2


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
    assert printed.startswith(
        "The verdicts are stated for 4000 requests and 5 seeds: at 60 and 2 a claim may fail"
    )
    simulate("--experiment", "padding", "--requests", "4000")
    assert "The verdicts" not in capsys.readouterr().out


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
