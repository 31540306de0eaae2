"""The quick selections against slow ones that say the rule outright, over random lives of a queue."""

from __future__ import annotations

from collections.abc import Callable
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


def measured():
    """A table of times at load: two rows gain a little and four a good deal, long ones less than short ones."""
    table = CostTable()
    for rows, frames, seconds in [
        *[(1, 100, 0.02), (1, 400, 0.05), (1, 700, 0.12)],
        *[(2, 100, 0.03), (2, 400, 0.09), (2, 700, 0.23)],
        *[(4, 100, 0.04), (4, 400, 0.15), (4, 700, 0.45)],
    ]:
        table.measure(rows, frames, seconds)
    return table


@dataclass
class Case:
    """One moment: who waits, by arrival, what the time is and how the scheduler is configured."""

    waiting: list[Request]
    now: float
    config: EngineConfig
    table: Callable[[], CostTable] = CostTable

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
    """The runs that get the most done a second; with a margin, the best of the smallest size that comes so near."""
    table = case.table()

    def rate(run):
        return sum(max(1, r.num_frames) ** 0.5 for r in run) / table.batch_time_s(
            len(run), run[-1].num_frames
        )

    runs = [run for _, _, run in case.runs()]
    enough = max(map(rate, runs)) / (1 + case.config.cost_margin) * (1 - 1e-12)
    good = [run for run in runs if rate(run) >= enough]
    if case.config.cost_margin:
        good = [run for run in good if len(run) == min(map(len, good))]
    return [run for run in good if rate(run) >= max(map(rate, good)) * (1 - 1e-12)]


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
    ("policy", "expected", "options", "table"),
    [
        ("window", window, {"max_wait_time": 0.2}, CostTable),
        ("window", window, {}, CostTable),
        ("cost", cost, {"max_wait_time": 0.2}, CostTable),
        ("cost", cost, {}, CostTable),
        ("cost", cost, {"cost_margin": 0.1}, CostTable),
        ("cost", cost, {"max_wait_time": 0.2}, measured),
        ("cost", cost, {}, measured),
        ("cost", cost, {"cost_margin": 0.1}, measured),
        ("sjf", shortest, {}, CostTable),
        ("hrrn", highest_ratio, {}, CostTable),
        ("sjf", forced, {"max_wait_time": 0.0}, CostTable),
        ("hrrn", forced, {"max_wait_time": 0.0}, CostTable),
    ],
)
@settings(max_examples=120, deadline=None)
@given(events=st.builds(list.__add__, st.lists(ADD, min_size=8, max_size=25), EVENTS))
def test_a_selection_is_what_the_rule_says(policy, expected, options, table, events):
    config = EngineConfig(
        max_batch_size=CAP,
        schedule_policy=policy,
        max_offline_pad_ratio=2.0,
        length_window_factor=FACTOR,
        **{"max_wait_time": 10.0, **options},
    )
    clock = FakeClock(8.0)
    scheduler = Scheduler(config, clock, table())
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
            case = Case(by_arrival, clock.now, config, table)
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
