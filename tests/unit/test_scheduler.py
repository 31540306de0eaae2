"""The scheduler's rules, one by one, under a clock that the tests move."""

import gc
import weakref

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.errors import ConfigError
from oasr_backend.request import Request, RequestState
from oasr_backend.scheduler import CostTable, Policy, Scheduler, policies, register_policy
from tests.fakes import FakeClock


def make(clock=None, **options):
    defaults = {"max_batch_size": 32, "schedule_policy": "fcfs"}
    return Scheduler(EngineConfig(**{**defaults, **options}), clock or FakeClock())


def add(scheduler, *lengths, **options):
    first = scheduler.num_waiting
    requests = [Request(f"r{first + i:03d}", length, **options) for i, length in enumerate(lengths)]
    for request in requests:
        scheduler.add_request(request)
    return requests


def frames(requests):
    return [request.num_frames for request in requests]


def ids(requests):
    return [request.request_id for request in requests]


def test_an_empty_scheduler_dispatches_nothing():
    scheduler = make()
    output = scheduler.schedule()
    assert (output.offline_batch, output.newly_admitted, output.running_streams) == ([], [], [])
    assert not scheduler.has_pending()
    assert scheduler.next_wakeup() is None


def test_fcfs_dispatches_in_order_of_arrival_up_to_the_cap():
    scheduler = make(max_batch_size=3)
    add(scheduler, 500, 100, 300, 200)
    assert frames(scheduler.schedule().offline_batch) == [500, 100, 300]
    assert frames(scheduler.schedule().offline_batch) == [200]


def test_a_batch_is_the_largest_preferred_size_that_the_waiting_fill():
    clock = FakeClock()
    scheduler = make(clock, max_batch_size=16, preferred_batch_size=(4, 8))
    add(scheduler, *[200] * 10)
    assert len(scheduler.schedule().offline_batch) == 8
    assert scheduler.schedule().offline_batch == []
    clock.advance(0.2)
    assert len(scheduler.schedule().offline_batch) == 2


def test_fewer_than_the_smallest_preferred_size_wait_until_the_oldest_is_overdue():
    clock = FakeClock()
    scheduler = make(clock, preferred_batch_size=(4, 8))
    add(scheduler, 200, 200, 200)
    assert scheduler.schedule().offline_batch == []
    assert scheduler.next_wakeup() == clock.now + 0.2
    clock.now = scheduler.next_wakeup()
    assert len(scheduler.schedule().offline_batch) == 3
    assert scheduler.next_wakeup() is None


def test_a_request_that_has_waited_exactly_the_bound_is_overdue():
    clock = FakeClock(0.0)
    scheduler = make(clock, preferred_batch_size=(2,), max_wait_time=0.5)
    add(scheduler, 100)
    clock.advance(0.499)
    assert scheduler.schedule().offline_batch == []
    clock.advance(0.001)
    assert len(scheduler.schedule().offline_batch) == 1


def test_a_forced_batch_ignores_the_ladder_but_never_exceeds_its_top():
    clock = FakeClock()
    scheduler = make(clock, preferred_batch_size=(4, 8))
    add(scheduler, *[200] * 20)
    clock.advance(1)
    assert [len(scheduler.schedule().offline_batch) for _ in range(3)] == [8, 8, 4]


def test_work_that_can_run_now_wakes_the_driver_now():
    clock = FakeClock()
    scheduler = make(clock, preferred_batch_size=(2,))
    add(scheduler, 100, 100)
    assert scheduler.next_wakeup() == clock.now


def test_an_infinite_bound_never_wakes_the_driver():
    scheduler = make(preferred_batch_size=(2,), max_wait_time=float("inf"))
    add(scheduler, 100)
    assert scheduler.next_wakeup() is None


def test_a_better_class_overtakes_worse_ones_that_are_not_overdue():
    scheduler = make(max_batch_size=1)
    add(scheduler, 100, priority=5)
    add(scheduler, 200, priority=0)
    assert frames(scheduler.schedule().offline_batch) == [200]


def test_the_bound_outranks_the_class():
    clock = FakeClock()
    scheduler = make(clock, max_batch_size=1)
    add(scheduler, 100, priority=5)
    clock.advance(1)
    add(scheduler, 200, priority=0)
    assert frames(scheduler.schedule().offline_batch) == [100]
    assert frames(scheduler.schedule().offline_batch) == [200]


def test_within_a_class_arrival_order_is_kept():
    scheduler = make(max_batch_size=1)
    for name, priority in [("a", 5), ("b", 0), ("c", 2), ("d", 5), ("e", 0)]:
        scheduler.add_request(Request(name, 100, priority=priority))
    assert [ids(scheduler.schedule().offline_batch)[0] for _ in range(5)] == [
        "b",
        "e",
        "c",
        "a",
        "d",
    ]


def test_equal_arrivals_go_by_request_id():
    scheduler = make()
    scheduler.add_request(Request("b", 100))
    scheduler.add_request(Request("a", 100))
    assert ids(scheduler.schedule().offline_batch) == ["a", "b"]


def test_a_given_arrival_time_is_kept():
    clock = FakeClock()
    scheduler = make(clock, max_batch_size=1)
    scheduler.add_request(Request("late", 100))
    scheduler.add_request(Request("early", 100, arrival_time=clock.now - 0.1))
    assert ids(scheduler.schedule().offline_batch) == ["early"]


def test_the_frame_budget_holds_and_a_fill_in_order_stops_at_it():
    scheduler = make(max_batch_frames=800)
    add(scheduler, 100, 1000, 100)
    assert frames(scheduler.schedule().offline_batch) == [100]
    assert frames(scheduler.schedule().offline_batch) == [1000]  # alone it may exceed the budget
    assert frames(scheduler.schedule().offline_batch) == [100]


def test_the_frame_budget_holds_for_forced_batches_too():
    clock = FakeClock()
    scheduler = make(clock, max_batch_frames=800)
    add(scheduler, 400, 300, 200)
    clock.advance(1)
    assert frames(scheduler.schedule().offline_batch) == [400, 300]


def test_a_fixed_window_is_what_the_budget_counts():
    scheduler = make(max_batch_frames=6000, fixed_window_frames=3000)
    add(scheduler, 10, 20, 30)
    assert frames(scheduler.schedule().offline_batch) == [10, 20]


def test_an_aborted_request_never_runs():
    scheduler = make()
    first, second = add(scheduler, 100, 200)
    assert scheduler.abort_request(first.request_id) is first
    assert first.state is RequestState.ABORTED
    assert scheduler.schedule().offline_batch == [second]
    assert scheduler.abort_request(first.request_id) is None


def test_a_dispatched_utterance_leaves_the_index_and_nothing_of_it_stays():
    scheduler = make()
    [request] = add(scheduler, 100)
    seen = weakref.ref(scheduler)
    assert scheduler.find_request("r000") is request
    scheduler.schedule()
    assert scheduler.find_request("r000") is None
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.has_pending()) == (0, 0, False)
    with pytest.raises(KeyError):
        scheduler.finish_request("r000")
    holders = [h for h in gc.get_referrers(request) if not hasattr(h, "f_code")]
    assert seen() is scheduler
    assert holders == []


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    scheduler = make()
    add(scheduler, 100)
    with pytest.raises(ValueError) as caught:
        scheduler.add_request(Request("r000", 50))
    assert str(caught.value) == "request id 'r000' is already waiting or running"
    scheduler.schedule()
    scheduler.add_request(Request("r000", 50))


def test_streams_are_admitted_at_preferred_pool_sizes_and_finish():
    clock = FakeClock()
    scheduler = make(clock, preferred_batch_size=(4, 8), max_wait_time=0.05)
    add(scheduler, *[10] * 5, streaming=True)
    output = scheduler.schedule()
    assert len(output.newly_admitted) == 4
    assert output.running_streams == output.newly_admitted
    assert scheduler.num_waiting_streaming == 1
    clock.advance(0.05)
    assert len(scheduler.schedule().newly_admitted) == 1
    for stream in scheduler.schedule().running_streams:
        scheduler.finish_request(stream.request_id)
        assert stream.state is RequestState.FINISHED
    assert not scheduler.has_pending()


def test_streams_beyond_the_pool_wait_without_waking_the_driver():
    scheduler = make(max_batch_size=2)
    add(scheduler, 10, 10, 10, streaming=True)
    assert ids(scheduler.schedule().newly_admitted) == ["r000", "r001"]
    assert scheduler.schedule().newly_admitted == []
    assert scheduler.next_wakeup() is None
    scheduler.finish_request("r000")
    assert ids(scheduler.schedule().newly_admitted) == ["r002"]


@pytest.mark.parametrize(
    ("options", "lengths", "sizes"),
    [
        ({"max_batch_frames": 800}, [200] * 10, [4, 4, 2]),
        ({"max_batch_frames": 500}, [100, 100, 900, 100], [3, 1]),
        ({"preferred_batch_size": (4, 8), "max_batch_size": 8}, [200] * 11, [8, 3]),
        ({"preferred_batch_size": (4, 8), "max_batch_size": 8}, [200] * 7, [4, 3]),
        ({"max_batch_size": 8}, [200] * 11, [6, 5]),
        ({"max_batch_size": 8}, [200] * 25, [7, 6, 6, 6]),
    ],
)
def test_a_list_is_split_within_the_bounds(options, lengths, sizes):
    requests = [Request(f"{i:02d}", length, arrival_time=0.0) for i, length in enumerate(lengths)]
    parts = make(**options).split_offline_batch(requests)
    assert [len(part) for part in parts] == sizes
    assert frames(request for part in parts for request in part) == sorted(lengths)


def test_a_policy_of_a_user_is_found_by_name_and_bounded(monkeypatch):
    monkeypatch.setattr(policies, "_POLICIES", dict(policies._POLICIES))

    class LastFirst(Policy):
        def select(self, limits, now):
            return [list(self.queue.in_order(now))[-1]]

    register_policy("last_first", LastFirst)
    clock = FakeClock()
    scheduler = make(clock, schedule_policy="last_first")
    add(scheduler, 1, 2, 3)
    assert frames(scheduler.schedule().offline_batch) == [3]
    clock.advance(1)
    assert frames(scheduler.schedule().offline_batch) == [1, 2]


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ConfigError) as caught:
        make(schedule_policy="lifo")
    assert str(caught.value).startswith("schedule_policy is 'lifo'; it must be one of ")


def test_stale_entries_do_not_pile_up():
    scheduler = make(max_batch_size=1)
    for number in range(1000):
        scheduler.add_request(Request(f"r{number}", 100))
        scheduler.add_request(Request(f"p{number}", 100, priority=1 + number % 3))
        scheduler.abort_request(f"p{number}")
        scheduler.schedule()
    queue = scheduler._offline._lanes[None].queue
    assert len(queue) == 0
    orders = [*queue.by_class(), queue._everyone]
    assert all(len(order._keys) < 200 for order in orders)


@pytest.mark.parametrize("policy", ["fcfs", "bucket", "window", "sjf", "hrrn", "cost"])
def test_classes_and_sizes_that_clients_choose_leave_nothing_behind(policy):
    scheduler = Scheduler(EngineConfig(schedule_policy=policy), FakeClock())
    for number in range(500):
        scheduler.add_request(Request(f"r{number}", 1 + number, priority=number))
        scheduler.schedule()
    lane = scheduler._offline._lanes[None]
    assert len(lane.queue._classes) < 50
    assert len(getattr(lane.policy, "_classes", ())) < 50


@pytest.mark.parametrize("policy", ["window", "cost"])
def test_a_better_class_with_too_few_for_the_ladder_is_held_until_it_is_overdue(policy):
    clock = FakeClock()
    config = EngineConfig(
        schedule_policy=policy, preferred_batch_size=(4, 8), max_batch_size=8, max_wait_time=0.2
    )
    scheduler = Scheduler(config, clock)
    for number in range(12):
        scheduler.add_request(Request(f"r{number:02d}", 100, priority=0 if number < 2 else 5))
    assert scheduler.schedule().offline_batch == []
    assert scheduler.next_wakeup() == clock.now + 0.2
    clock.advance(0.2)
    batch = [r.request_id for r in scheduler.schedule().offline_batch]
    assert batch[:2] == ["r00", "r01"]
    assert len(batch) in (4, 8)


def test_a_request_that_has_run_cannot_be_added_again():
    scheduler = Scheduler(EngineConfig(), FakeClock())
    request = Request("a", 100)
    scheduler.add_request(request)
    scheduler.schedule()
    with pytest.raises(ValueError, match="request 'a' is running; only a new one can be added"):
        scheduler.add_request(request)
    assert not scheduler.has_pending()


def test_cost_is_exact_where_a_long_clip_holds_little_speech():
    scheduler = Scheduler(
        EngineConfig(schedule_policy="cost", job_size="vad", max_offline_pad_ratio=0), FakeClock()
    )
    # By length: the anchor, one with hardly any speech, one full of it.
    clips = [("anchor", 900, 500), ("silent", 800, 1), ("spoken", 700, 700)]
    for name, num_frames, speech_frames in clips:
        scheduler.add_request(Request(name, num_frames, speech_frames=speech_frames))
    batch = {request.request_id for request in scheduler.schedule().offline_batch}

    def rate(*indices):
        seconds = 0.010 + 0.002 / 100 * len(indices) * 900
        return sum(clips[index][2] ** 0.5 for index in indices) / seconds

    best = max([(0,), (0, 1), (0, 1, 2)], key=lambda indices: rate(*indices))
    assert batch == {clips[index][0] for index in best}


@pytest.mark.parametrize(
    ("seconds_of_2", "seconds_of_4", "margin", "size"),
    [
        (1.9, 3.8, 0.0, 2),  # two gain a twentieth, four no more
        (1.9, 3.8, 0.1, 1),
        (1.9, 3.0, 0.1, 4),  # four gain a third
        (1.4, 2.75, 0.0, 4),
        (1.4, 2.75, 0.1, 2),  # and two nearly as much
        (2.2, 4.4, 0.1, 1),
    ],
)
def test_cost_takes_a_larger_batch_only_for_what_it_gains_beyond_the_margin(
    seconds_of_2, seconds_of_4, margin, size
):
    costs = CostTable()
    for rows, seconds in ((1, 1.0), (2, seconds_of_2), (4, seconds_of_4)):
        costs.measure(rows, 100, seconds)
    config = EngineConfig(
        schedule_policy="cost",
        preferred_batch_size=(1, 2, 4),
        max_batch_size=4,
        cost_margin=margin,
        max_wait_time=float("inf"),
    )
    scheduler = Scheduler(config, FakeClock(), costs)
    add(scheduler, *[100] * 8)
    assert len(scheduler.schedule().offline_batch) == size


def test_a_margin_holds_on_a_line_too():
    clips = [100] * 8
    sizes = {}
    for margin in (0.0, 0.5):
        costs = CostTable(fixed_s=0.1, slope_s=0.01)
        config = EngineConfig(
            schedule_policy="cost", max_batch_size=8, cost_margin=margin, max_wait_time=float("inf")
        )
        scheduler = Scheduler(config, FakeClock(), costs)
        add(scheduler, *clips)
        sizes[margin] = len(scheduler.schedule().offline_batch)
    assert sizes == {0.0: 8, 0.5: 1}  # 8.1 s for eight, 1.1 s for one
