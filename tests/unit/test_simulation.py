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
from oasr_backend.simulation.figures import deepest_delay, figures_of
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


def test_two_workers_take_a_batch_each_at_the_same_time():
    arrivals = [Arrival(0.0, 100), Arrival(0.0, 100), Arrival(0.5, 200)]
    config = EngineConfig(max_batch_size=1, schedule_policy="fcfs", parallel_batches=2)
    run = simulate(config, arrivals, affine(1.0, 0.5))
    assert [(s.began_s, s.ended_s) for s in run.served] == [(0.0, 1.5), (0.0, 1.5), (1.5, 3.5)]
    assert run.throughput == pytest.approx(3 / 3.5)


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


def test_a_clip_beyond_the_window_runs_in_pieces_and_is_served_with_its_last():
    arrivals = [Arrival(0.0, 7000), Arrival(0.0, 100)]
    options = config("fcfs", cap=1, preferred_batch_size=(1,), fixed_window_frames=3000)
    run = simulate(options, arrivals, affine(0.0, 0.1))
    # A row takes 3 s whatever it holds. Two pieces wait at once; the third is filed when the first is done.
    assert [(s.arrival, s.batch, s.began_s, s.ended_s) for s in run.served] == [
        (arrivals[0], 0, 0.0, 12.0),
        (arrivals[1], 2, 6.0, 9.0),
    ]
    filed = [(row.arrival.time_s, row.arrival.num_frames) for row in run.rows]
    assert filed == [(0.0, 3000), (0.0, 3000), (0.0, 100), (3.0, 1000)]
    assert run.padding_ratio == pytest.approx(4 * 3000 / 7100)


def test_a_forced_batch_between_the_rungs_runs_as_several_as_in_the_engine():
    options = config("fcfs", cap=4, max_wait_time=0.0, preferred_batch_size=(1, 2, 4))
    run = simulate(options, [Arrival(0.0, 100)] * 3, affine(1.0, 0.0))
    assert sorted(s.ended_s for s in run.served) == [1.0, 1.0, 2.0]


def test_the_table_of_a_machine_is_where_cost_starts_and_its_top_rung_the_largest_batch(tmp_path):
    path = tmp_path / "costs.json"
    table = CostTable()
    for rows, seconds in ((1, 0.1), (2, 0.11), (4, 1.0)):
        table.measure(rows, 3000, seconds)
    path.write_text(json.dumps(table.as_dict()))
    options = EngineConfig(
        max_wait_time=inf, preferred_batch_size=(1, 2, 4), fixed_window_frames=3000
    )
    workload = Workload((Mode(8, inf, "ljspeech"),))
    case = Case("cost", workload, read_service(str(path)), 16, options)
    assert case.max_rows == 4
    assert run_case(case, 0).throughput == pytest.approx(8 / (4 * 0.11))
    assert replace(case, cap=2).config().preferred_batch_size == (1, 2)


def test_a_quiet_tenant_is_served_sooner_with_tenant_fairness():
    case = Case(
        "fcfs",
        Workload((Mode(300, inf, "ljspeech"),), tenants=(("loud", 9), ("quiet", 1))),
        SERVICES["cpu"],
    )
    fair = EngineConfig(max_wait_time=inf, tenant_fairness=True)
    mixed, shared = run_case(case, 0), run_case(replace(case, options=fair), 0)
    assert shared.tenants[1].p50_s < 0.5 * mixed.tenants[1].p50_s
    assert shared.tenants[1].alone_p50_s == mixed.tenants[1].alone_p50_s < shared.tenants[1].p50_s
    assert mixed.tenants[0].arrived_share + mixed.tenants[1].arrived_share == pytest.approx(1.0)


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
    for text in (
        "time_s,duration_s,tenant\n7.5,2.0,b\n5.0,1.25,\n",
        '\ufefftime_s , tenant, duration_s\r\n7.5, "b",  2.0\r\n\r\n5.0,, 1.25 \r\n',
    ):
        path.write_text(text, encoding="utf-8")
        assert read_trace(path) == (Arrival(0.0, 125, None), Arrival(2.5, 200, "b"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "when,duration_s\n1,2\n",
            (
                ":1: the header is 'when,duration_s'; it must hold time_s and duration_s, may hold tenant, and "
                "nothing else: make the first line time_s,duration_s,tenant and drop other columns"
            ),
        ),
        (
            "time_s,duration_s,tennant\n1,2,a\n",
            (
                ":1: the header is 'time_s,duration_s,tennant'; it must hold time_s and duration_s, may hold tenant, "
                "and nothing else: make the first line time_s,duration_s,tenant and drop other columns"
            ),
        ),
        (
            "time_s,duration_s\n1,2,a\n",
            ":2: it holds 3 columns; it must hold 2 (time_s,duration_s): correct the line",
        ),
        (
            'time_s,duration_s\n1,"2\n',
            ":2: this is no CSV (unexpected end of data): correct it",
        ),
        (
            "time_s,duration_s\n1,2\n3,long\n",
            ":3: duration_s is 'long'; it must be a number of seconds: correct the line",
        ),
        (
            "time_s,duration_s\n1\n",
            ":2: it holds 1 columns; it must hold 2 (time_s,duration_s): correct the line",
        ),
        (
            "time_s,duration_s\n1, \n",
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
        "second of audio), or the path of a server's cost table (its cost_table_path): correct it"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.2.3+2", "1.2.3"), ("-10+2.1", "-10"), ("10+", ""), ("inf+1", "inf"), ("1+nan", "nan")],
)
def test_a_bad_line_of_a_service_names_the_number(text, number):
    with pytest.raises(ConfigError) as caught:
        read_service(text)
    assert str(caught.value) == (
        f"service is {text!r}; {number!r} is no number of ms from 0 up: give two of them as 10+2.1 (a batch, and a "
        "padded second of audio)"
    )


def test_a_line_without_time_is_refused():
    with pytest.raises(ConfigError) as caught:
        read_service("0+0")
    assert str(caught.value) == (
        "service is '0+0'; a batch of 1 s of audio must take from 0.001 to 1e+09 ms: correct it"
    )


@pytest.mark.parametrize("text", ["[1]", "{}", "no json", "[" * 100_000, '{"fixed_s": "x"}'])
def test_a_file_that_is_no_cost_table_names_the_option_that_writes_one(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_service(str(path))
    assert str(caught.value).startswith(f"{path} is no cost table (")
    assert str(caught.value).endswith(
        "): give the file that a server has written to its cost_table_path"
    )


def test_a_cost_table_without_time_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(CostTable(1e9, 0.0).as_dict()))
    with pytest.raises(ConfigError) as caught:
        read_service(str(path))
    assert str(caught.value) == (
        f"{path} gives a batch of 1 s of audio 1e+09 s; it must be from 1e-06 to 1e+06 s: have the server measure "
        "anew (delete its cost_table_path's file, and start it)"
    )
