"""The command that measures what the scheduler itself costs: what it prints and refuses."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_scheduler.py"
SMALL = ["--rounds", "1", "--dispatched", "4", "--waiting", "3", "--cap", "4"]


@pytest.fixture
def bench(monkeypatch):
    """Return the script's main, to be called with its arguments."""
    spec = importlib.util.spec_from_file_location("bench_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench_scheduler.py", *SMALL, *arguments])
        return script.main()

    return call


def test_every_policy_has_a_line_and_cost_one_for_each_kind_of_table(bench, capsys):
    assert bench() == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    names = "fcfs bucket window sjf hrrn cost cost-grid cost-rungs adaptive"
    assert [line.split()[0] for line in lines] == names.split()


def test_an_unknown_policy_is_refused_before_anything_is_measured(bench, capsys):
    assert bench("--policies", "fcfs", "lifo") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error: schedule_policy is 'lifo'; it must be one of adaptive, bucket, cost, fcfs, hrrn, sjf, window: choose "
        "one of them\n"
    )


@pytest.mark.parametrize("flag", ["--waiting", "--rounds", "--dispatched", "--cap"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_below_1_is_refused(bench, capsys, flag, number):
    with pytest.raises(SystemExit):
        bench(flag, number)
    assert f"argument {flag}: {number} is not above 0" in capsys.readouterr().err
