"""Estimated sizes, tenants' shares, preemption, length updates: what the cases' one-liners cannot say."""

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.errors import ConfigError
from oasr_backend.request import Request, RequestState
from oasr_backend.scheduler import CostTable, Scheduler
from oasr_backend.scheduler.cost_table import MAX_KNOWN
from tests.fakes import FakeClock


def make(clock=None, **options):
    defaults = {"max_batch_size": 1, "schedule_policy": "sjf", "max_offline_pad_ratio": 0.0}
    return Scheduler(EngineConfig(**{**defaults, **options}), clock or FakeClock())


def names(batch):
    return [request.request_id for request in batch]


def order_of(scheduler, *requests):
    for request in requests:
        scheduler.add_request(request)
    order = []
    while scheduler.num_waiting_offline:
        order += names(scheduler.schedule().offline_batch)
    return order


class TestEstimates:
    def test_frames_are_the_default_size(self):
        scheduler = make()
        scheduler.add_request(Request("a", 250))
        assert scheduler.find_request("a").size == 250

    @pytest.mark.parametrize(
        ("kappa", "frames", "size"),
        [(4.0, 250, 10), (3.9, 250, 9), (4.0, 10, 1), (4.0, 0, 1), (None, 250, 224)],
    )
    def test_tokens_are_seconds_times_kappa_or_the_models_maximum(self, kappa, frames, size):
        scheduler = make(job_size="tokens", kappa=kappa)
        scheduler.add_request(Request("a", frames))
        assert scheduler.find_request("a").size == size

    def test_kappa_is_learnt_by_language(self):
        scheduler = make(job_size="tokens", kappa=4.0, adaptive_kappa=True)
        for _ in range(200):
            scheduler.learn_output("ja", 10.0, 80)
        order = order_of(
            scheduler, Request("dense", 1000, language="ja"), Request("sparse", 1500, language="en")
        )
        assert order == ["sparse", "dense"]  # 80 tokens against 60

    def test_kappa_that_is_unknown_starts_at_the_first_output(self):
        scheduler = make(job_size="tokens", adaptive_kappa=True)
        scheduler.learn_output("en", 10.0, 30)
        scheduler.add_request(Request("known", 1000, language="en"))
        scheduler.add_request(Request("unknown", 1000, language="fi"))
        assert scheduler.find_request("known").size == 30
        assert scheduler.find_request("unknown").size == 224

    def test_kappa_is_not_learnt_unless_asked_for(self):
        scheduler = make(job_size="tokens", kappa=4.0)
        scheduler.learn_output("ja", 10.0, 800)
        scheduler.add_request(Request("a", 1000, language="ja"))
        assert scheduler.find_request("a").size == 40

    def test_speech_counts_and_silence_does_not(self):
        order = order_of(
            make(job_size="vad"),
            Request("silent", 2000, speech_frames=100),
            Request("chatty", 500, speech_frames=490),
            Request("unknown", 400),
        )
        assert order == ["silent", "unknown", "chatty"]

    def test_an_unknown_job_size_is_refused(self):
        with pytest.raises(ConfigError) as caught:
            make(job_size="bytes")
        assert (
            str(caught.value)
            == "job_size is 'bytes'; it must be one of frames, tokens, vad: choose one of them"
        )


class TestTenants:
    def test_the_least_served_tenant_goes_first(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs")
        requests = [Request(f"a{i}", 100, tenant="a") for i in range(4)]
        requests += [Request(f"b{i}", 100, tenant="b") for i in range(2)]
        assert order_of(scheduler, *requests) == ["a0", "b0", "a1", "b1", "a2", "a3"]

    def test_shares_count_audio_not_requests(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs")
        requests = [Request(f"a{i}", 300, tenant="a") for i in range(2)]
        requests += [Request(f"b{i}", 100, tenant="b") for i in range(4)]
        assert order_of(scheduler, *requests) == ["a0", "b0", "b1", "b2", "a1", "b3"]

    def test_weights_scale_the_shares(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs", tenant_weights={"a": 2.0})
        requests = [Request(f"{t}{i}", 100, tenant=t) for t in "ab" for i in range(4)]
        assert order_of(scheduler, *requests) == ["a0", "b0", "a1", "a2", "b1", "a3", "b2", "b3"]

    def test_a_batch_is_filled_within_the_tenant_before_others(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs", max_batch_size=3)
        for request in [
            Request("a0", 100, tenant="a"),
            Request("b0", 100, tenant="b"),
            Request("a1", 100, tenant="a"),
        ]:
            scheduler.add_request(request)
        scheduler.add_request(Request("a2", 100, tenant="a"))
        assert names(scheduler.schedule().offline_batch) == ["a0", "a1", "a2"]
        scheduler.add_request(Request("a3", 100, tenant="a"))
        assert names(scheduler.schedule().offline_batch) == ["a3", "b0"]

    def test_a_tenant_that_returns_starts_at_the_least_of_the_active(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs")
        order_of(scheduler, Request("b", 100, tenant="b"))
        for index in range(10):
            scheduler.add_request(Request(f"a{index}", 1000, tenant="a"))
        for _ in range(5):
            scheduler.schedule()
        order = order_of(scheduler, *[Request(f"c{i}", 1000, tenant="c") for i in range(5)])
        assert order[:4] == ["a5", "c0", "a6", "c1"]  # not five of c in a row

    def test_the_starvation_bound_holds_across_tenants(self):
        clock = FakeClock()
        scheduler = make(clock, tenant_fairness=True, schedule_policy="fcfs", max_wait_time=0.5)
        order_of(scheduler, Request("a0", 100000, tenant="a"))
        scheduler.add_request(Request("b", 100, tenant="b"))
        scheduler.add_request(Request("a1", 100, tenant="a"))
        clock.advance(0.1)
        scheduler.add_request(Request("b1", 100, tenant="b"))
        assert names(scheduler.schedule().offline_batch) == ["b"]
        clock.advance(0.4)
        assert names(scheduler.schedule().offline_batch) == ["a1"]  # overdue, though b has had less

    def test_streams_are_admitted_by_tenant_too(self):
        scheduler = make(tenant_fairness=True, schedule_policy="window")
        order_of(scheduler, Request("past", 5000, tenant="a"))
        scheduler.add_request(Request("b", 10, tenant="b", streaming=True))
        scheduler.add_request(Request("a", 5, tenant="a", streaming=True))
        assert names(scheduler.schedule().newly_admitted) == ["b"]

    def test_tenants_that_left_are_forgotten(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs")
        for index in range(500):
            order_of(scheduler, Request(f"r{index}", 1, tenant=f"t{index}"))
            scheduler.add_request(Request(f"k{index}", 1000, tenant="steady"))
            scheduler.schedule()
        scheduler.add_request(Request("last", 1, tenant="steady"))
        scheduler.add_request(Request("new", 1, tenant="new"))
        assert len(scheduler._offline._shares._served_s) < 10

    @pytest.mark.parametrize("policy", ["fcfs", "window", "sjf", "cost"])
    def test_a_forced_batch_holds_overdue_requests_of_all_tenants(self, policy):
        clock = FakeClock()
        scheduler = make(clock, tenant_fairness=True, schedule_policy=policy, max_batch_size=8)
        for index in range(8):
            scheduler.add_request(Request(f"r{index}", 100, tenant=f"t{index}"))
        clock.advance(0.2)
        assert len(scheduler.schedule().offline_batch) == 8

    @pytest.mark.parametrize("policy", ["fcfs", "window", "sjf", "cost"])
    @pytest.mark.parametrize("ladder", [(4, 8), (1, 8)])
    def test_a_rung_is_filled_within_the_tenant_before_others(self, policy, ladder):
        scheduler = make(
            tenant_fairness=True,
            schedule_policy=policy,
            max_batch_size=8,
            preferred_batch_size=ladder,
        )
        for name, count in (("a", 3), ("b", 10)):
            for index in range(count):
                scheduler.add_request(Request(f"{name}{index}", 100, tenant=name))
        batch = names(scheduler.schedule().offline_batch)
        assert batch[:3] == ["a0", "a1", "a2"] or (policy, batch) == ("cost", ["a0"])

    def test_an_update_leaves_a_tenant_its_standing(self):
        scheduler = make(tenant_fairness=True, schedule_policy="fcfs")
        for name, num_frames in [("a0", 100), ("b0", 5000), ("a1", 100), ("b1", 100)]:
            scheduler.add_request(Request(name, num_frames, tenant=name[0]))
        order = [names(scheduler.schedule().offline_batch) for _ in range(2)]
        assert order == [["a0"], ["b0"]]
        scheduler.update("a1", 200)
        scheduler.add_request(Request("a2", 100, tenant="a"))
        scheduler.add_request(Request("a3", 100, tenant="a"))
        order = [names(scheduler.schedule().offline_batch) for _ in range(4)]
        assert order == [["a1"], ["a2"], ["a3"], ["b1"]]

    def test_a_stream_is_charged_for_what_it_grows_to_and_once(self):
        scheduler = make(tenant_fairness=True, schedule_policy="window", max_batch_size=1)
        scheduler.add_request(Request("a", 10, tenant="a", streaming=True))
        scheduler.schedule()
        scheduler.update("a", 1000)
        scheduler.preempt()
        scheduler.schedule()
        shares = scheduler._offline._shares
        assert shares.served_s("a") == pytest.approx(10.0)

    def test_a_tenant_with_streams_alone_starts_at_the_least_too(self):
        scheduler = make(tenant_fairness=True, schedule_policy="window", max_batch_size=1)
        for index in range(8):
            scheduler.add_request(Request(f"a{index}", 1000, tenant="a", streaming=True))
        for _ in range(4):
            [admitted] = scheduler.schedule().newly_admitted
            scheduler.finish_request(admitted.request_id)
        for index in range(4):
            scheduler.add_request(Request(f"b{index}", 1000, tenant="b", streaming=True))
        order = []
        while scheduler.num_waiting:
            [admitted] = scheduler.schedule().newly_admitted
            order.append(scheduler.finish_request(admitted.request_id).tenant)
        assert order == ["a", "b"] * 4

    def test_an_unknown_policy_is_refused_at_once(self):
        with pytest.raises(ConfigError, match="schedule_policy is 'fcsf'"):
            make(tenant_fairness=True, schedule_policy="fcsf")


class TestPreemption:
    def streams(self, policy, *requests, clock=None):
        scheduler = make(
            clock, schedule_policy=policy, max_batch_size=8, streaming_cohort_admit=False
        )
        for request in requests:
            scheduler.add_request(request)
        scheduler.schedule()
        return scheduler

    def test_sjf_sends_the_longest_job_back(self):
        scheduler = self.streams(
            "sjf",
            Request("a", 100, streaming=True),
            Request("b", 300, streaming=True),
            Request("c", 200, streaming=True),
        )
        assert scheduler.preempt().request_id == "b"

    def test_hrrn_sends_the_lowest_response_ratio_back(self):
        clock = FakeClock()
        scheduler = self.streams(
            "hrrn",
            Request("short", 100, streaming=True, arrival_time=clock.now - 1),
            Request("long", 900, streaming=True, arrival_time=clock.now - 2),
            clock=clock,
        )
        assert scheduler.preempt().request_id == "long"

    @pytest.mark.parametrize("policy", ["fcfs", "window", "bucket", "cost", "adaptive"])
    def test_the_others_send_the_newest_of_the_worst_class_back(self, policy):
        clock = FakeClock()
        scheduler = self.streams(
            policy,
            Request("old", 10, streaming=True, priority=2, arrival_time=clock.now - 0.1),
            Request("new", 10, streaming=True, priority=2),
            Request("best", 10, streaming=True),
            clock=clock,
        )
        assert scheduler.preempt().request_id == "new"

    def test_the_victim_waits_anew_and_comes_back(self):
        clock = FakeClock()
        scheduler = self.streams("fcfs", Request("a", 10, streaming=True), clock=clock)
        clock.advance(5)
        victim = scheduler.preempt()
        assert (victim.state, victim.arrival_time) == (RequestState.WAITING, clock.now)
        assert (scheduler.num_running, scheduler.num_waiting_streaming) == (0, 1)
        assert scheduler.find_request("a") is victim
        assert names(scheduler.schedule().newly_admitted) == ["a"]

    def test_nobody_runs_nobody_is_preempted(self):
        assert make().preempt() is None


class TestUpdates:
    def test_a_longer_request_is_filed_anew(self):
        scheduler = make()
        scheduler.add_request(Request("a", 100))
        scheduler.add_request(Request("b", 200))
        scheduler.update("a", 300)
        assert names(scheduler.schedule().offline_batch) == ["b"]

    def test_a_waiting_streams_backlog_counts_at_admission(self):
        scheduler = make(schedule_policy="window")
        scheduler.add_request(Request("a", 100, streaming=True))
        scheduler.add_request(Request("b", 200, streaming=True))
        scheduler.update("a", 300)
        assert names(scheduler.schedule().newly_admitted) == ["b"]

    def test_its_place_by_arrival_stays(self):
        clock = FakeClock()
        scheduler = make(clock, schedule_policy="fcfs")
        scheduler.add_request(Request("a", 100))
        clock.advance(0.1)
        scheduler.add_request(Request("b", 100))
        scheduler.update("a", 300)
        assert names(scheduler.schedule().offline_batch) == ["a"]

    def test_a_running_stream_may_grow(self):
        scheduler = make(schedule_policy="window")
        scheduler.add_request(Request("a", 100, streaming=True))
        scheduler.schedule()
        scheduler.update("a", 150)
        assert scheduler.find_request("a").num_frames == 150

    def test_an_unknown_id_is_a_key_error(self):
        with pytest.raises(KeyError):
            make().update("nobody", 1)

    def test_a_bad_length_leaves_everything_as_it_was(self):
        scheduler = make()
        scheduler.add_request(Request("a", 100))
        with pytest.raises(ValueError):
            scheduler.update("a", -1)
        assert names(scheduler.schedule().offline_batch) == ["a"]


class TestCostTable:
    def test_the_prior_is_ten_milliseconds_and_two_a_padded_second(self):
        assert CostTable().batch_time_s(4, 250) == pytest.approx(0.010 + 0.002 * 10)

    @pytest.mark.parametrize("measured", [False, True])
    def test_the_times_of_many_lengths_are_those_of_each(self, measured):
        table = CostTable()
        if measured:
            for rows, seconds in ((1, 0.1), (4, 0.3)):
                table.measure(rows, 100, seconds)
                table.measure(rows, 1000, 9 * seconds)
        table.observe(4, 1000, 0.5)
        lengths = [*range(0, 3 * MAX_KNOWN, 7), 100, 50, 1000]
        for rows in (1, 3, 8):
            one_by_one = [table.batch_time_s(rows, longest) for longest in lengths]
            assert table.batch_times_s(rows, lengths) == one_by_one
            assert min(one_by_one) > 0
        assert table.batch_times_s(1, []) == []

    def test_the_fit_finds_the_true_line(self):
        table = CostTable()
        for step in range(300):
            rows, longest = 1 + step % 8, 100 + 37 * step % 2000
            table.observe(rows, longest, 0.05 + 0.001 * rows * longest / 100)
        assert table.batch_time_s(1, 100) == pytest.approx(0.051, rel=0.03)
        assert table.batch_time_s(8, 2000) == pytest.approx(0.21, rel=0.03)

    def test_long_rows_that_are_slower_than_measured_leave_the_measured_gain_of_batches(self):
        table = CostTable()
        for rows, share in ((1, 1.0), (2, 0.8)):
            for longest in (1000, 2000):
                table.measure(rows, longest, share * rows * 3e-4 * (longest - 300))
        for step in range(300):
            longest = 1000 if step % 3 else 3000
            slower = 1.0 if longest == 1000 else 1.5
            table.observe(1, longest, slower * 3e-4 * (longest - 300))
        assert table.batch_time_s(2, 1000) == pytest.approx(1.6 * table.batch_time_s(1, 1000))

    @pytest.mark.parametrize("measured", [False, True])
    def test_large_batches_that_are_slower_than_thought_do_not_make_small_ones_free(self, measured):
        table = CostTable()
        if measured:
            for rows in (1, 8):
                for longest in (200, 2000):
                    table.measure(rows, longest, 0.001 + 0.00001 * rows * longest)
        for step in range(300):
            rows, longest = 1 + step % 8, 100 + 37 * step % 2000
            table.observe(rows, longest, 1e-8 * (rows * longest) ** 1.9)
        times_s = [table.batch_time_s(1, longest) for longest in (1, 100, 200, 1000)]
        assert min(times_s) == times_s[0] > 0
        assert times_s[1] > 1e-4
        if measured:
            assert times_s[2] == pytest.approx(1.5 * times_s[1]), "as measured: 3 ms and 2 ms"
        else:
            assert times_s[2] > 1.5 * times_s[1]
        assert table.batch_time_s(8, 2000) > 30 * times_s[2]

    def test_rows_that_now_and_then_take_longer_do_not_look_like_a_fixed_cost(self):
        table = CostTable()
        for rows in (1, 4):
            for longest in (1000, 3000):
                table.measure(rows, longest, 0.0001 * rows * longest)
        for step in range(300):
            rows, again = 1 + 3 * (step % 2), step % 3 == 0
            # In the short window every third row is tried again.
            table.observe(rows, 1000, rows * (0.1 + 0.3 * again))
            table.observe(1, 3000, 0.3)
        assert 3.9 < table.batch_time_s(4, 1000) / table.batch_time_s(1, 1000) < 4.1

    def test_batches_that_all_look_alike_scale_the_whole_table(self):
        table = CostTable()
        for _ in range(100):
            table.observe(1, 1000, 0.09)  # the prior says 0.03
        assert table.batch_time_s(1, 1000) == pytest.approx(0.09, rel=0.02)
        assert table.batch_time_s(4, 1000) == pytest.approx(0.27, rel=0.05)

    def test_a_disturbed_measurement_counts_as_long_as_a_larger_batch(self):
        table = CostTable()
        table.measure(1, 100, 0.9)  # something else ran beside it
        table.measure(4, 100, 0.4)
        table.measure(2, 100, 0.3)
        assert [table.batch_time_s(rows, 100) for rows in (1, 2, 4)] == [0.3, 0.3, 0.4]

    def test_a_disturbed_measurement_counts_as_long_as_its_rows_in_smaller_batches(self):
        table = CostTable()
        table.measure(1, 100, 0.2)
        table.measure(4, 100, 0.5)
        table.measure(
            2, 100, 0.9
        )  # something else ran beside it, longer than one after the other: 2 × 0.2
        assert [table.batch_time_s(rows, 100) for rows in (1, 2, 4)] == [0.2, 0.4, 0.5]
        table.measure(1, 100, 0.1)
        assert [table.batch_time_s(rows, 100) for rows in (1, 2, 4)] == [0.1, 0.2, 0.4]

    def test_a_disturbed_measurement_counts_as_long_as_a_longer_batch(self):
        table = CostTable()
        table.measure(1, 600, 0.30)
        table.measure(1, 1500, 0.16)
        assert table.batch_time_s(1, 600) == 0.16
        assert table.batch_time_s(1, 3000) == 0.16

    @pytest.mark.parametrize("seconds", [float("nan"), 0.0, -1.0])
    def test_a_step_without_a_time_teaches_nothing(self, seconds):
        table = CostTable()
        table.observe(1, 1000, seconds)
        assert table.batch_time_s(1, 1000) == pytest.approx(0.03)

    @pytest.mark.parametrize("seconds", [1e9, float("inf")])
    def test_a_step_in_which_the_machine_slept_is_soon_forgotten(self, seconds):
        table = CostTable()
        table.observe(1, 1000, seconds)
        assert table.batch_time_s(1, 1000) <= 0.3
        for _ in range(30):
            table.observe(1, 1000, 0.03)
        assert table.batch_time_s(1, 1000) == pytest.approx(0.03, rel=0.35)

    def test_a_grid_measured_at_load_is_gone_through_and_refined(self):
        table = CostTable()
        for rows, longest, seconds in [
            (1, 100, 0.02),
            (1, 1000, 0.1),
            (4, 100, 0.05),
            (4, 1000, 0.3),
        ]:
            table.measure(rows, longest, seconds)
        assert table.batch_time_s(4, 1000) == pytest.approx(0.3)
        assert table.batch_time_s(1, 550) == pytest.approx(0.06)
        assert table.batch_time_s(2, 100) == pytest.approx(0.03)
        assert table.batch_time_s(8, 1000) == pytest.approx(0.6)
        for _ in range(100):
            table.observe(4, 1000, 0.6)
        assert table.batch_time_s(4, 1000) == pytest.approx(0.6, rel=0.02)

    def test_a_table_survives_a_file(self):
        table = CostTable()
        table.measure(1, 100, 0.02)
        table.measure(1, 1000, 0.1)
        for _ in range(10):
            table.observe(1, 500, 0.2)
        copy = CostTable.from_dict(table.as_dict())
        for rows, longest in [(1, 100), (3, 700), (16, 600)]:
            assert copy.batch_time_s(rows, longest) == pytest.approx(
                table.batch_time_s(rows, longest)
            )

    def test_a_time_is_always_positive_and_grows_with_the_batch(self):
        table = CostTable()
        for step in range(50):
            table.observe(1 + step % 4, 1000, 0.5 / (1 + step % 4))  # noise that says the contrary
        times = [table.batch_time_s(rows, 1000) for rows in (1, 2, 4, 8)]
        assert times == sorted(times)
        assert times[0] > 0
