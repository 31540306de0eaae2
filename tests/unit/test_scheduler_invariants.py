"""What holds after every step of any life of the scheduler: a state machine over random configurations and events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request, RequestState
from oasr_backend.scheduler import Scheduler
from tests.fakes import FakeClock

POLICIES = ["fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive"]
NEVER_PASSES_OVER_OVERDUE = {"fcfs", "bucket", "sjf", "hrrn"}

LENGTHS = st.one_of(st.integers(0, 3500), st.sampled_from([0, 1, 100, 100, 3000]))


@st.composite
def configs(draw, policy):
    max_batch_size = draw(st.integers(1, 9))
    sizes = draw(
        st.none() | st.lists(st.integers(1, max_batch_size), min_size=1, max_size=4).map(tuple)
    )
    return EngineConfig(
        schedule_policy=policy,
        max_batch_size=max_batch_size,
        preferred_batch_size=sizes,
        max_wait_time=draw(st.sampled_from([0.0, 0.2, 1.0, float("inf")])),
        max_batch_frames=draw(st.none() | st.integers(1, 8000)),
        length_bucket_ratio=draw(st.sampled_from([0.0, 0.5, 0.9])),
        max_offline_pad_ratio=draw(st.sampled_from([0.0, 1.1, 1.5, 4.0])),
        length_window_factor=draw(st.integers(1, 4)),
        streaming_cohort_admit=draw(st.booleans()),
        max_streams=draw(st.none() | st.integers(1, 12)),
        fixed_window_frames=draw(st.none() | st.just(3000)),
        job_size=draw(st.sampled_from(["frames", "tokens"])),
        kappa=draw(st.none() | st.just(4.0)),
        tenant_fairness=draw(st.booleans()),
    )


@dataclass
class Model:
    """The test's own account of who is where."""

    waiting: dict[str, Request] = field(default_factory=dict)
    streams_waiting: dict[str, Request] = field(default_factory=dict)
    running: dict[str, Request] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


def machine_for(policy):
    class SchedulerMachine(RuleBasedStateMachine):
        @initialize(config=configs(policy))
        def start(self, config):
            self.config = config
            self.clock = FakeClock()
            self.scheduler = Scheduler(config, self.clock)
            self.model = Model()
            self.num_added = 0
            self.sizes = config.preferred_batch_size or tuple(range(1, config.max_batch_size + 1))

        @rule(
            length=LENGTHS,
            priority=st.integers(-1, 3),
            tenant=st.sampled_from([None, "a", "b"]),
            waited=st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5]),
        )
        def add_utterance(self, length, priority, tenant, waited):
            request = Request(
                f"u{self.num_added:04d}",
                length,
                priority=priority,
                tenant=tenant,
                arrival_time=self.clock.now - waited,
            )
            self.num_added += 1
            self.model.waiting[request.request_id] = request
            self.scheduler.add_request(request)

        @rule(length=LENGTHS, priority=st.integers(0, 2), tenant=st.sampled_from([None, "a"]))
        def add_stream(self, length, priority, tenant):
            request = Request(
                f"s{self.num_added:04d}", length, streaming=True, priority=priority, tenant=tenant
            )
            self.num_added += 1
            self.model.streams_waiting[request.request_id] = request
            self.scheduler.add_request(request)

        @rule(seconds=st.sampled_from([0.01, 0.1, 0.2, 1.0]))
        def wait(self, seconds):
            self.clock.advance(seconds)

        @precondition(
            lambda self: self.model.waiting or self.model.streams_waiting or self.model.running
        )
        @rule(data=st.data())
        def abort(self, data):
            model = self.model
            name = data.draw(
                st.sampled_from(sorted([*model.waiting, *model.streams_waiting, *model.running]))
            )
            request = self.scheduler.abort_request(name)
            assert request.request_id == name
            assert request.state is RequestState.ABORTED
            for table in (model.waiting, model.streams_waiting, model.running):
                table.pop(name, None)
            model.gone.add(name)
            assert self.scheduler.abort_request(name) is None

        @precondition(lambda self: self.model.waiting or self.model.streams_waiting)
        @rule(data=st.data(), length=LENGTHS)
        def update(self, data, length):
            model = self.model
            name = data.draw(st.sampled_from(sorted([*model.waiting, *model.streams_waiting])))
            self.scheduler.update(name, length)
            assert self.scheduler.find_request(name).num_frames == length

        @precondition(lambda self: self.model.running)
        @rule(data=st.data())
        def finish(self, data):
            name = data.draw(st.sampled_from(sorted(self.model.running)))
            assert self.scheduler.finish_request(name) is self.model.running.pop(name)
            self.model.gone.add(name)

        @rule()
        def preempt(self):
            victim = self.scheduler.preempt()
            assert (victim is None) == (not self.model.running)
            if victim is not None:
                assert victim.state is RequestState.WAITING
                assert victim.arrival_time == self.clock.now
                self.model.streams_waiting[victim.request_id] = self.model.running.pop(
                    victim.request_id
                )

        @rule()
        def schedule(self):
            overdue = {n for n, t in self.model.waiting.items() if self.is_overdue(t)}
            output = self.scheduler.schedule()
            self.check_streams(output)
            if output.offline_batch:
                self.check_batch(output.offline_batch, overdue)

        @rule()
        def sleep_until_woken(self):
            due = self.scheduler.next_wakeup()
            assume(due is not None)
            assert due >= self.clock.now or self.clock.now - due >= 0
            self.clock.now = max(self.clock.now, due)
            output = self.scheduler.schedule()
            overdue = {n for n, t in self.model.waiting.items() if self.is_overdue(t)}
            assert output.offline_batch or output.newly_admitted, "woken for nothing"
            self.check_streams(output)
            if output.offline_batch:
                self.check_batch(output.offline_batch, overdue)

        def is_overdue(self, request):
            return request.arrival_time + self.config.max_wait_time <= self.clock.now

        def check_streams(self, output):
            limit = self.config.max_streams or self.config.max_batch_size
            for request in output.newly_admitted:
                assert request.state is RequestState.RUNNING
                self.model.running[request.request_id] = self.model.streams_waiting.pop(
                    request.request_id
                )
            assert [r.request_id for r in output.running_streams] == list(self.model.running)
            assert len(self.model.running) <= limit

        def check_batch(self, batch, overdue):
            config = self.config
            names = [request.request_id for request in batch]
            assert len(set(names)) == len(names)
            for request in batch:
                assert request.state is RequestState.RUNNING
                assert request.request_id in self.model.waiting, (
                    "dispatched twice, or aborted before"
                )
            order = [(r.arrival_time, r.request_id) for r in batch]
            assert order == sorted(order), "a batch is in order of arrival"
            lengths = [config.fixed_window_frames or r.num_frames for r in batch]
            assert len(batch) <= self.sizes[-1], "the cap holds, forced or not"
            if config.max_batch_frames is not None and len(batch) > 1:
                assert max(lengths) * len(batch) <= config.max_batch_frames, (
                    "the budget holds, forced or not"
                )
            forced = bool(overdue)
            if not forced:
                assert len(batch) in self.sizes or len(batch) == 1, "sizes are rungs unless forced"
            guarded = not forced or policy in ("window", "cost", "adaptive")
            if guarded and policy != "fcfs" and len(batch) > 1:
                assert min(lengths) >= config.length_bucket_ratio * max(lengths)
                if config.max_offline_pad_ratio and sum(lengths):
                    assert max(lengths) * len(batch) <= config.max_offline_pad_ratio * sum(
                        lengths
                    ) * (1 + 1e-9)
            if policy in NEVER_PASSES_OVER_OVERDUE and forced:
                chosen = set(names)
                if chosen - overdue:
                    assert overdue <= chosen, "one that is not overdue went before one that is"
                else:
                    latest = max((self.model.waiting[n].arrival_time, n) for n in chosen)
                    passed = [
                        n
                        for n in overdue - chosen
                        if (self.model.waiting[n].arrival_time, n) < latest
                    ]
                    assert not passed, "an older overdue one was passed over"
            for name in names:
                self.model.waiting.pop(name)
                self.model.gone.add(name)

        @invariant()
        def counts_agree(self):
            model, scheduler = self.model, self.scheduler
            assert scheduler.num_waiting_offline == len(model.waiting)
            assert scheduler.num_waiting_streaming == len(model.streams_waiting)
            assert scheduler.num_waiting == len(model.waiting) + len(model.streams_waiting)
            assert scheduler.num_running == len(model.running)
            everyone = {*model.waiting, *model.streams_waiting, *model.running}
            assert set(scheduler._index) == everyone, "the index is exact"
            assert scheduler.has_pending() == bool(everyone)

        @invariant()
        def the_gone_are_gone(self):
            assert not [
                name for name in self.model.gone if self.scheduler.find_request(name) is not None
            ]

        def num_candidates(self):
            """Those of whom the smallest rung must be filled: of the best class alone where a batch holds no others."""
            waiting = list(self.model.waiting.values())
            best = min(request.priority for request in waiting)
            num_tenants = len({r.tenant for r in waiting}) if self.config.tenant_fairness else 1
            if policy in ("window", "cost", "adaptive") and num_tenants == 1:
                return sum(request.priority == best for request in waiting)
            return len(waiting)

        def teardown(self):
            """Nothing is lost: with time enough, everyone leaves."""
            if not hasattr(self, "scheduler"):
                return
            for name in list(self.model.running):
                self.scheduler.finish_request(name)
                self.model.running.pop(name)
            for name in list(self.model.streams_waiting):
                self.scheduler.abort_request(name)
                self.model.streams_waiting.pop(name)
            for _ in range(len(self.model.waiting) + 1):
                if not self.model.waiting:
                    break
                due = self.scheduler.next_wakeup()
                if due is None:
                    assert self.config.max_wait_time == float("inf")
                    assert self.num_candidates() < self.sizes[0]
                    break
                self.clock.now = max(self.clock.now, due)
                for request in self.scheduler.schedule().offline_batch:
                    self.model.waiting.pop(request.request_id)
            else:
                assert not self.model.waiting, "somebody never left"

    return SchedulerMachine


@pytest.mark.parametrize("policy", POLICIES)
def test_the_invariants_hold_in_every_life(policy):
    run_state_machine_as_test(
        machine_for(policy),
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("policy", ["window", "cost"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_request_leaves_within_as_many_batches_as_were_ahead_of_it_and_one(policy, data):
    config = data.draw(configs(policy).filter(lambda c: not c.tenant_fairness))
    clock = FakeClock()
    scheduler = Scheduler(config, clock)
    num_added = 0
    ahead, num_batches = {}, {}
    for action in (
        data.draw(st.lists(st.one_of(LENGTHS, st.just("step")), max_size=60)) + ["step"] * 60
    ):
        clock.advance(0.01)
        if action != "step":
            name = f"{num_added:04d}"
            num_added += 1
            ahead[name], num_batches[name] = scheduler.num_waiting, 0
            scheduler.add_request(Request(name, action))
            continue
        batch = scheduler.schedule().offline_batch
        if batch:
            for name in num_batches:
                num_batches[name] += 1
        for request in batch:
            assert num_batches.pop(request.request_id) <= ahead[request.request_id] + 1
