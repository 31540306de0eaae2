"""The rules by which "adaptive" changes its policy, shown one sign at a time."""

import logging
from math import inf

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler import CostTable, Scheduler
from oasr_backend.scheduler.policies import adaptive

CHEAP = CostTable(fixed_s=0.012, slope_s=0.15e-5)
"""A machine on which a full batch takes hardly longer than one request."""

DEAR = CostTable(fixed_s=0.010, slope_s=2.1e-5)
"""A machine on which a batch takes nearly what its rows take one by one."""


class Bench:
    """A scheduler under "adaptive" with a clock that the test moves; a step takes a tenth of a second."""

    def __init__(self, costs=CHEAP, max_wait_time=inf, cap=4):
        self.now = 0.0
        self.scheduler = Scheduler(
            EngineConfig(
                max_batch_size=cap, schedule_policy="adaptive", max_wait_time=max_wait_time
            ),
            lambda: self.now,
            costs,
        )
        self.num_added = 0

    def add(self, count, num_frames=300):
        for _ in range(count):
            self.scheduler.add_request(Request(f"{self.num_added:06d}", num_frames))
            self.num_added += 1

    def step(self):
        batch = self.scheduler.schedule().offline_batch
        self.now += 0.1
        return [int(r.request_id) for r in batch]

    @property
    def policy(self):
        return self.scheduler._offline._lanes[None].policy._name


def deepen(bench):
    """Let some caps wait for a few steps, so that the queue counts as deep."""
    bench.add(16)
    for _ in range(4):
        bench.add(4)
        bench.step()


def test_one_at_a_time_is_served_by_fcfs_and_two_by_cost():
    bench = Bench()
    bench.add(1)
    bench.step()
    assert bench.policy == "fcfs"
    bench.add(2)
    bench.step()
    assert bench.policy == "cost"


def test_fcfs_comes_back_only_after_many_selections_that_found_one():
    bench = Bench()
    bench.add(2)
    bench.step()
    names = []
    for _ in range(adaptive.ALONE_SELECTIONS):
        bench.add(1)
        bench.step()
        names.append(bench.policy)
    assert names == ["cost"] * (adaptive.ALONE_SELECTIONS - 1) + ["fcfs"]


def test_a_deep_queue_is_served_by_sjf_where_a_full_batch_is_cheap():
    bench = Bench()
    deepen(bench)
    assert bench.policy == "sjf"


def test_a_deep_queue_is_served_by_cost_where_a_full_batch_is_dear():
    bench = Bench(costs=DEAR)
    deepen(bench)
    assert bench.policy == "cost"


def test_sjf_ends_when_the_queue_has_drained():
    bench = Bench()
    deepen(bench)
    while bench.scheduler.has_pending():
        bench.step()
    for _ in range(4):
        bench.add(2)
        bench.step()
    assert bench.policy == "cost"


def test_sjf_ends_when_it_leaves_more_behind_than_a_part_of_what_it_ships():
    bench = Bench()
    deepen(bench)
    for _ in range(40):
        bench.add(8)  # twice what a step ships
        bench.step()
    assert bench.policy == "cost"
    num_switches = bench.scheduler.num_policy_switches
    for _ in range(40):
        bench.add(4)
        bench.step()
    # The queue is as deep as ever, and has not drained.
    assert bench.scheduler.num_policy_switches == num_switches


def test_sjf_ends_before_the_wait_bound_would_force_arrival_order():
    bench = Bench(max_wait_time=3.0)
    deepen(bench)
    assert bench.policy == "sjf"
    bench.now += 1.5
    bench.step()
    assert bench.policy == "cost"


def test_an_overdue_oldest_ships_at_once_even_from_a_queue_that_sjf_served():
    bench = Bench(max_wait_time=60.0)
    bench.add(1, num_frames=3000)
    bench.add(1)
    deepen(bench)
    bench.add(1, num_frames=3000)
    oldest = next(i for i in range(bench.num_added) if bench.scheduler.find_request(f"{i:06d}"))
    assert bench.policy == "sjf"
    bench.now += 60.0
    assert oldest in bench.step()


def test_a_switch_is_logged_and_counted(caplog):
    bench = Bench()
    bench.add(2)
    with caplog.at_level(logging.INFO):
        bench.step()
    assert [r.getMessage() for r in caplog.records] == ["adaptive goes from fcfs to cost: 2 wait"]
    assert bench.scheduler.num_policy_switches == 1


@pytest.mark.parametrize("costs", [CHEAP, DEAR])
def test_a_switch_loses_nobody(costs):
    bench = Bench(costs=costs)
    deepen(bench)
    seen = bench.num_added - bench.scheduler.num_waiting
    while bench.scheduler.has_pending():
        seen += len(bench.step())
    assert seen == bench.num_added
