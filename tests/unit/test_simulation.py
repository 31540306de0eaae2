"""The simulation, and the documents' experiments in it at a size that a test can afford."""

import json
from dataclasses import replace
from math import inf
from statistics import median

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.errors import ConfigError
from oasr_backend.scheduler import CostTable
from oasr_backend.simulation.cases import Case, Lab, run_case
from oasr_backend.simulation.figures import deepest_delay, figures_of, jain
from oasr_backend.simulation.run import percentile, saturation, simulate
from oasr_backend.simulation.service import SERVICES, affine, read_service
from oasr_backend.simulation.trace import read_trace
from oasr_backend.simulation.workload import (
    LENGTHS,
    Arrival,
    Mode,
    Workload,
    burst,
    load_drift,
    poisson,
    steady,
)

POLICIES = ["fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive"]


def config(policy, cap=16, max_wait_time=inf, **options):
    return EngineConfig(
        max_batch_size=cap, schedule_policy=policy, max_wait_time=max_wait_time, **options
    )


def p50(run):
    return percentile([s.latency_s for s in run.served], 50)


def test_a_run_is_what_a_hand_calculation_gives():
    arrivals = [Arrival(0.0, 100), Arrival(0.5, 200), Arrival(0.5, 100)]
    run = simulate(config("fcfs", cap=2), arrivals, affine(1.0, 0.5))
    # The first alone takes 1 + 0.5 × 1 s; the others together, from 1.5, take 1 + 0.5 × 2 × 2 s.
    assert [(s.began_s, s.ended_s, s.batch) for s in run.served] == [
        (0.0, 1.5, 0),
        (1.5, 4.5, 1),
        (1.5, 4.5, 1),
    ]
    assert run.padding_ratio == pytest.approx(500 / 400)
    assert run.throughput == pytest.approx(3 / 4.5)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_everyone_within_the_wait_bound(policy):
    arrivals = poisson(500, 60.0, LENGTHS["librispeech"], seed=1)
    run = simulate(config(policy, max_wait_time=0.2), arrivals, SERVICES["cpu"])
    assert len({id(s) for s in run.served}) == 500


def test_padding_of_fcfs_and_window_on_ljspeech_lengths_at_a_backlog():
    deepest = []
    for seed in range(40):
        arrivals = burst(2048, LENGTHS["ljspeech"], seed)
        fcfs = simulate(config("fcfs", cap=32), arrivals, SERVICES["cpu"])
        window = simulate(config("window", cap=32), arrivals, SERVICES["cpu"])
        assert 1.45 <= fcfs.padding_ratio <= 1.58
        assert 1.08 <= window.padding_ratio <= 1.14
        deepest.append(deepest_delay(window.served, 32))
    assert median(deepest) <= 8
    assert max(deepest) <= 10


def test_one_at_a_time_sjf_beats_hrrn_beats_fcfs_in_the_median_and_none_serves_more():
    service = SERVICES["cpu"]
    lengths = LENGTHS["librispeech"]
    rate = saturation(config("fcfs", cap=1), poisson(1500, 1.0, lengths, 9), service)
    runs = {
        p: simulate(config(p, cap=1), poisson(1500, 1.1 * rate, lengths, 0), service)
        for p in ("fcfs", "sjf", "hrrn")
    }
    assert p50(runs["sjf"]) < p50(runs["hrrn"]) < p50(runs["fcfs"])
    assert runs["sjf"].throughput == pytest.approx(runs["fcfs"].throughput, rel=0.05)
    assert runs["hrrn"].throughput == pytest.approx(runs["fcfs"].throughput, rel=0.05)


@pytest.mark.parametrize("service", ["cpu", "gpu"])
@pytest.mark.parametrize("lengths", sorted(LENGTHS))
def test_cost_is_not_worse_than_window_and_beats_fcfs_where_there_is_a_queue(lengths, service):
    draw, machine = LENGTHS[lengths], SERVICES[service]
    rate = saturation(config("fcfs"), poisson(1500, 1.0, draw, 9), machine)
    arrivals = poisson(1500, 1.2 * rate, draw, 0)
    runs = {p: simulate(config(p), arrivals, machine) for p in ("fcfs", "window", "cost")}
    assert p50(runs["cost"]) <= 1.1 * p50(runs["window"])
    assert p50(runs["cost"]) < p50(runs["fcfs"])


@pytest.mark.parametrize("max_wait_time", [inf, 0.2])
def test_adaptive_is_near_the_best_fixed_policy_when_the_load_drifts(max_wait_time):
    draw, machine = LENGTHS["librispeech"], SERVICES["gpu"]
    rate = saturation(config("fcfs"), poisson(1000, 1.0, draw, 9), machine)
    arrivals = load_drift(2000, 0.3 * rate, 2.0 * rate, "librispeech").arrivals(0)
    runs = {
        policy: simulate(config(policy, max_wait_time=max_wait_time), arrivals, machine)
        for policy in ("window", "sjf", "cost", "adaptive")
    }
    ours = figures_of(runs.pop("adaptive"), 16)
    fixed = [figures_of(run, 16) for run in runs.values()]
    assert ours.num_switches > 0
    assert ours.p50_s <= 1.15 * min(f.p50_s for f in fixed)
    assert ours.p90_s <= 1.15 * min(f.p90_s for f in fixed)


def test_arrival_order_in_full_batches_is_no_delay():
    arrivals = burst(100, LENGTHS["librispeech"], 0)
    assert deepest_delay(simulate(config("fcfs"), arrivals, SERVICES["cpu"]).served, 16) == 0


def test_a_delay_is_counted_in_the_batches_that_ran_since_the_arrival():
    arrivals = [Arrival(0.0, 100), Arrival(0.5, 900), Arrival(0.6, 100), Arrival(0.7, 200)]
    served = simulate(config("sjf", cap=1), arrivals, affine(1.0, 0.0)).served
    # The long one ran as the fourth: two batches after the one in which arrival order had it.
    assert [s.batch for s in served] == [0, 3, 1, 2]
    assert deepest_delay(served, 1) == 2


def test_jains_index_is_1_among_equals_and_1_in_n_where_one_has_all():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_quiet_tenant_is_served_sooner_with_tenant_fairness():
    case = Case(
        "fcfs",
        Workload((Mode(300, inf, "ljspeech"),), tenants=(("loud", 9), ("quiet", 1))),
        SERVICES["cpu"],
    )
    alone, shared = run_case(case, 0), run_case(replace(case, tenant_fairness=True), 0)
    assert shared.tenants[1].p50_s < 0.5 * alone.tenants[1].p50_s
    assert shared.jain > alone.jain
    assert alone.tenants[0].arrived_share + alone.tenants[1].arrived_share == pytest.approx(1.0)


def test_a_workload_draws_the_same_arrivals_from_the_same_seed_and_others_from_another():
    workload = load_drift(200, 5.0, 50.0, "uniform")
    assert workload.arrivals(3) == workload.arrivals(3)
    assert workload.arrivals(3) != workload.arrivals(4)
    assert len(workload.arrivals(3)) == 200
    assert {a.time_s for a in workload.as_backlog().arrivals(3)} == {0.0}


def test_the_modes_of_a_drift_follow_each_other_at_their_own_rates():
    times = [a.time_s for a in load_drift(4000, 1.0, 100.0, "ljspeech").arrivals(0)]
    assert times == sorted(times)
    assert (times[999] - times[0]) / 999 == pytest.approx(1.0, rel=0.1)
    assert (times[2999] - times[1000]) / 1999 == pytest.approx(0.01, rel=0.1)


def test_processes_change_no_figure():
    cases = {p: Case(p, steady(50, 30.0, "ljspeech"), SERVICES["cpu"]) for p in ("sjf", "cost")}
    one, two = Lab(num_seeds=2), Lab(num_seeds=2, num_processes=2)
    assert one.seeds_of(cases) == two.seeds_of(cases)


def test_the_best_batch_size_is_the_one_that_works_off_a_backlog_fastest():
    case = Case("fcfs", steady(300, 1.0, "librispeech"), SERVICES["cpu"])
    cap, throughput = Lab().best_cap(case, [1, 8, 32])
    assert cap == 1
    assert throughput == pytest.approx(
        saturation(config("fcfs", cap=1), case.workload.arrivals(0), SERVICES["cpu"])
    )


def test_a_belief_keeps_the_cost_table_from_learning():
    case = Case("cost", steady(300, 60.0, "librispeech"), SERVICES["cpu"])
    right, wrong = (
        run_case(replace(case, belief=belief), 0) for belief in (SERVICES["cpu"], affine(1.0, 0.0))
    )
    assert right.num_switches == 0
    assert wrong.padding > right.padding


def test_a_trace_is_read_in_order_of_time_from_its_first_arrival(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time_s,duration_s,tenant\n7.5,2.0,b\n5.0,1.25,\n")
    assert read_trace(path) == (Arrival(0.0, 125, None), Arrival(2.5, 200, "b"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "when,duration_s\n1,2\n",
            (
                ":1: the header is 'when,duration_s'; it must hold time_s and duration_s, and may hold tenant: "
                "make the first line time_s,duration_s,tenant"
            ),
        ),
        (
            "time_s,duration_s\n1,2\n3,long\n",
            ":3: duration_s is 'long'; it must be a number of seconds: correct the line",
        ),
        (
            "time_s,duration_s\n1\n",
            ":2: duration_s is ''; it must be a number of seconds: correct the line",
        ),
        (
            "time_s,duration_s\n-1,2\n",
            ":2: time_s is -1; it must be at least 0 s: correct the line",
        ),
        (
            "time_s,duration_s\n1,nan\n",
            ":2: duration_s is nan; it must be from 0.01 to 7200 s: correct the line",
        ),
        (
            "time_s,duration_s\n1,9000\n",
            ":2: duration_s is 9000; it must be from 0.01 to 7200 s: correct the line",
        ),
        (
            "time_s,duration_s\n",
            " holds 0 arrivals; it must hold at least 1: add a line",
        ),
    ],
)
def test_a_bad_trace_names_line_value_limit_and_remedy(tmp_path, text, error):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}{error}"


def test_a_service_is_a_name_a_line_or_a_cost_table(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(CostTable(0.020, 0.003 / 100).as_dict()))
    assert read_service("gpu") is SERVICES["gpu"]
    assert read_service("20+3")(2, 500) == pytest.approx(0.050)
    assert read_service(str(path))(2, 500) == pytest.approx(0.050)


def test_a_bad_service_names_what_is_allowed(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_service("tpu")
    assert str(caught.value) == (
        "service is 'tpu'; it must be cpu, gpu, linear, two numbers of ms as 10+2.1 (a batch, and a padded "
        "second of audio), or the path of a cost table as JSON: correct it"
    )
    with pytest.raises(ConfigError, match="one of them above 0: correct it"):
        read_service("0+0")
    path = tmp_path / "costs.json"
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="is no cost table"):
        read_service(str(path))
