"""The documents' experiments in the simulation, at a size that a test can afford."""

from math import inf
from statistics import median

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.simulation.run import percentile, saturation, simulate
from oasr_backend.simulation.service import SERVICES, affine
from oasr_backend.simulation.workload import LENGTHS, Arrival, burst, joined, poisson

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
        deepest.append(max(s.batch - index // 32 for index, s in enumerate(window.served)))
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


def test_adaptive_switches_when_the_load_drifts():
    draw, machine = LENGTHS["librispeech"], SERVICES["cpu"]
    rate = saturation(config("fcfs"), poisson(1000, 1.0, draw, 9), machine)
    drift = joined([poisson(500, x * rate, draw, seed) for seed, x in enumerate((0.3, 2.5, 0.3))])
    assert simulate(config("adaptive"), drift, machine).num_switches >= 2
