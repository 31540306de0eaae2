"""The quick selections against slow ones that say the rule outright, over random lives of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler import CostTable, Scheduler
from tests.fakes import FakeClock

CAP, FACTOR = 4, 2

ADD = st.tuples(
    st.just("add"),
    st.integers(0, 7).map(lambda n: n * 100),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.0, 0.0, 0.3, 0.05]),
)
EVENTS = st.lists(
    st.one_of(
        ADD,
        st.tuples(st.just("wait"), st.sampled_from([0.05, 0.25])),
        st.tuples(st.just("abort"), st.integers(0, 100)),
        st.tuples(st.just("update"), st.integers(0, 100), st.integers(0, 7).map(lambda n: n * 100)),
        st.just(("step",)),
        st.just(("step",)),
    ),
    max_size=30,
)


@dataclass
class Case:
    """One moment: who waits, by arrival, what the time is and how the scheduler is configured."""

    waiting: list[Request]
    now: float
    config: EngineConfig

    def is_overdue(self, request):
        return request.arrival_time + self.config.max_wait_time <= self.now

    def candidates(self):
        """The overdue of any class by arrival, then the best class among the rest by arrival."""
        overdue = [r for r in self.waiting if self.is_overdue(r)]
        fresh = [r for r in self.waiting if not self.is_overdue(r)]
        best = min((r.priority for r in fresh), default=0)
        fresh = [r for r in fresh if r.priority == best]
        return (overdue + fresh)[: CAP * FACTOR]

    def runs(self):
        """Every admitted run of the candidates that holds the oldest, as (size, start, requests)."""
        found = self.candidates()
        ordered = sorted(found, key=lambda r: (r.num_frames, r.arrival_time, r.request_id))
        for size in range(1, CAP + 1):
            for start in range(len(ordered) - size + 1):
                run = ordered[start : start + size]
                lengths = [r.num_frames for r in run]
                pads = sum(lengths) and max(lengths) * size > 2.0 * sum(lengths)
                if found[0] in run and not (size > 1 and pads):
                    yield size, start, run


def window(case):
    def rank(entry):
        size, start, run = entry
        return -size, run[-1].num_frames * size - sum(r.num_frames for r in run), start

    return [min(case.runs(), key=rank)[2]]


def cost(case):
    def rate(run):
        seconds = 0.010 + 0.002 / 100 * len(run) * run[-1].num_frames
        return sum(max(1, r.num_frames) ** 0.5 for r in run) / seconds

    runs = [run for _, _, run in case.runs()]
    best = max(map(rate, runs))
    return [run for run in runs if rate(run) >= best * (1 - 1e-12)]


def by_size(case):
    return sorted(
        case.waiting,
        key=lambda r: (r.priority, max(1, r.num_frames), r.arrival_time, r.request_id),
    )


def by_ratio(case):
    def rank(r):
        waited = Fraction(max(0.0, case.now - r.arrival_time))
        return r.priority, -waited / max(1, r.num_frames), r.arrival_time, r.request_id

    return sorted(case.waiting, key=rank)


def filled(order):
    """The first of an order, and the next ones that the guard on padding admits beside it."""
    batch = []
    for request in order:
        lengths = [r.num_frames for r in [*batch, request]]
        if len(batch) < CAP and not (
            len(lengths) > 1 and sum(lengths) and max(lengths) * len(lengths) > 2.0 * sum(lengths)
        ):
            batch.append(request)
    return batch


def shortest(case):
    return [filled(by_size(case))]


def highest_ratio(case):
    return [filled(by_ratio(case))]


def forced(case):
    overdue = [r for r in case.waiting if case.is_overdue(r)]
    fresh = sorted(
        (r for r in case.waiting if not case.is_overdue(r)),
        key=lambda r: (r.priority, r.arrival_time, r.request_id),
    )
    return [(overdue + fresh)[:CAP]]


@pytest.mark.parametrize(
    ("policy", "expected", "max_wait_time"),
    [
        ("window", window, 0.2),
        ("window", window, 10.0),
        ("cost", cost, 0.2),
        ("cost", cost, 10.0),
        ("sjf", shortest, 10.0),
        ("hrrn", highest_ratio, 10.0),
        ("sjf", forced, 0.0),
        ("hrrn", forced, 0.0),
    ],
)
@settings(max_examples=120, deadline=None)
@given(events=st.builds(list.__add__, st.lists(ADD, min_size=8, max_size=25), EVENTS))
def test_a_selection_is_what_the_rule_says(policy, expected, max_wait_time, events):
    config = EngineConfig(
        max_batch_size=CAP,
        schedule_policy=policy,
        max_wait_time=max_wait_time,
        max_offline_pad_ratio=2.0,
        length_window_factor=FACTOR,
    )
    clock = FakeClock(8.0)
    scheduler = Scheduler(config, clock, CostTable())
    waiting = {}
    for number, (event, *details) in enumerate([*events, ("step",), ("step",), ("step",)]):
        if event == "add":
            length, priority, waited = details
            request = Request(
                f"{number:03d}", length, priority=priority, arrival_time=clock.now - waited
            )
            waiting[request.request_id] = request
            scheduler.add_request(request)
        elif event == "wait":
            clock.advance(details[0])
        elif event == "step":
            by_arrival = sorted(waiting.values(), key=lambda r: (r.arrival_time, r.request_id))
            case = Case(by_arrival, clock.now, config)
            batch = scheduler.schedule().offline_batch
            if waiting:
                wanted = [{r.request_id for r in run} for run in expected(case)]
                assert {r.request_id for r in batch} in wanted
            for request in batch:
                del waiting[request.request_id]
        elif waiting:
            name = sorted(waiting)[details[0] % len(waiting)]
            if event == "abort":
                scheduler.abort_request(name)
                del waiting[name]
            else:
                scheduler.update(name, details[1])
