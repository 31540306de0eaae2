"""The specification's cases: what waits, and what successive `schedule()` calls at one instant dispatch.

A request is written as its frames, `p<N>` its priority, `@<s>` that it arrived so many seconds ago. B is
max_batch_size, R length_bucket_ratio, P max_offline_pad_ratio, F max_batch_frames, W max_wait_time.
"""

import re

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler import Scheduler
from tests.fakes import FakeClock

OPTIONS = {
    "B": "max_batch_size",
    "R": "length_bucket_ratio",
    "P": "max_offline_pad_ratio",
    "F": "max_batch_frames",
    "W": "max_wait_time",
    "factor": "length_window_factor",
    "sizes": "preferred_batch_size",
    "window_frames": "fixed_window_frames",
    "cohort": "streaming_cohort_admit",
}
PATTERN = re.compile(
    r"(?:(?P<name>[a-z]\w*) )?(?P<frames>\d+)(?: p(?P<priority>\d+))?(?: ?@(?P<waited>[\d.]+))?$"
)


def parse(text, now, streaming=False):
    requests = []
    for index, part in enumerate(text.split(",")):
        match = PATTERN.match(part.strip())
        assert match, part
        requests.append(
            Request(
                match["name"] or f"{index:03d}",
                int(match["frames"]),
                streaming=streaming,
                priority=int(match["priority"] or 0),
                arrival_time=now - float(match["waited"]) if match["waited"] else None,
            )
        )
    return requests


def make(policy, clock, **options):
    defaults = {"B": 32, "R": 0.0, "P": 0.0, "W": 0.2}
    named = {OPTIONS[key]: value for key, value in {**defaults, **options}.items()}
    return Scheduler(EngineConfig(schedule_policy=policy, **named), clock)


def dispatch(policy, text, num_batches, **options):
    clock = FakeClock()
    scheduler = make(policy, clock, **options)
    for request in parse(text, clock.now):
        scheduler.add_request(request)
    return [scheduler.schedule().offline_batch for _ in range(num_batches)]


ALL = ["fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive"]

ORDERED = [
    (1, "bucket", {"F": 800}, "1000, 100, 100", [[1000], [100, 100]]),
    (
        5,
        "bucket",
        {"window_frames": 3000, "B": 8, "P": 1.5, "R": 0.8},
        "98, 2900, 300, 1500",
        [[98, 2900, 300, 1500]],
    ),
    (
        6,
        "bucket",
        {"R": 0.5, "B": 4},
        "100, 201, 200, 50, 150, 49",
        [[100, 200, 150], [201], [50, 49]],
    ),
    (7, "bucket", {"P": 1.5, "B": 4}, "100, 200, 300, 120, 400", [[100, 200, 300], [120], [400]]),
    (8, "bucket", {"R": 0.9, "B": 3}, "100@1, 3000, 10, 100", [[100, 3000, 10], [100]]),
    (10, "window", {"B": 2}, "100, 900, 110, 880, 95", [[100, 95], [900, 880], [110]]),
    (
        11,
        "window",
        {"B": 3},
        "500, 100, 120, 490, 510, 110, 900",
        [[500, 490, 510], [100, 120, 110], [900]],
    ),
    (
        12,
        "window",
        {"B": 2, "factor": 2},
        "500, 100, 120, 490, 510, 505",
        [[500, 490], [100, 120], [510, 505]],
    ),
    (13, "window", {"B": 4, "F": 800}, "1000, 100, 100", [[1000], [100, 100]]),
    (14, "window", {"P": 1.2, "B": 3}, "100, 200, 300, 120, 400", [[100, 120], [200, 300], [400]]),
    (15, "window", {"B": 8, "sizes": (4,)}, "100, 200, 90, 400, 110, 300", [[100, 200, 90, 110]]),
    (16, "window", {"B": 2}, "a 100, b 130, z 105 p5 @1", [["z", "a"]]),
    (17, "window", {"B": 4}, "a 100, b 100 p1, c 100 p1", [["a"], ["b", "c"]]),
    (18, "fcfs", {"B": 1}, "x 100, y 100 p5 @1", [["y"], ["x"]]),
    # Ours, from the documents.
    (101, "fcfs", {"B": 3}, "500, 100, 300, 200", [[500, 100, 300], [200]]),
    (102, "fcfs", {"F": 800}, "100, 1000, 100", [[100], [1000], [100]]),
    (103, "fcfs", {"B": 4}, "a 9 p2, b 9 p1 @1, c 9, d 9 p7 @2", [["d", "b", "a", "c"]]),
    (104, "bucket", {"B": 3}, "a 100, b 900, c 100, d 100", [["a", "b", "c"], ["d"]]),
    (105, "bucket", {"R": 0.5, "B": 3}, "a 400, b 100, c 300 p1, d 390", [["a", "c", "d"], ["b"]]),
    (106, "bucket", {"F": 800, "B": 4}, "300, 500, 200, 100", [[300, 200], [500], [100]]),
    (
        107,
        "bucket",
        {"P": 1.5, "B": 4, "sizes": (1, 2, 4)},
        "100, 200, 300, 120",
        [[100, 200], [300, 120]],
    ),
    (108, "sjf", {"B": 1}, "a 300, b 100, c 200", [["b"], ["c"], ["a"]]),
    (109, "sjf", {"B": 1}, "a 100, b 100, c 100", [["a"], ["b"], ["c"]]),
    (110, "sjf", {"B": 1}, "a 300, b 100 p1, c 200 p1", [["a"], ["b"], ["c"]]),
    (111, "sjf", {"B": 2, "R": 0.5}, "a 100, b 300, c 250", [["a"], ["b", "c"]]),
    (112, "sjf", {"B": 4}, "a 900@1, b 100, c 200", [["a", "b", "c"]]),
    (113, "sjf", {"B": 1}, "a 900@0.1, b 100, c 800@0.2", [["c"], ["b"], ["a"]]),
    (114, "sjf", {"B": 4, "F": 600}, "a 300, b 200, c 100", [["b", "c"], ["a"]]),
    (115, "sjf", {"B": 4, "P": 1.5}, "a 100, b 400, c 110", [["a", "c"], ["b"]]),
    (116, "hrrn", {"B": 1}, "a 1000@0.1, b 100@0.02, c 100@0.01", [["b"], ["a"], ["c"]]),
    (
        117,
        "hrrn",
        {"B": 1},
        "a 300, b 100, c 200",
        [["a"], ["b"], ["c"]],
    ),  # nobody waited: equal ratios
    (118, "hrrn", {"B": 1}, "a 100@0.05, b 50@0.05, c 200@0.19", [["b"], ["c"], ["a"]]),
    (119, "hrrn", {"B": 1}, "a 100 p1 @0.1, b 100@0.01", [["b"], ["a"]]),
    (120, "hrrn", {"B": 2, "R": 0.5}, "a 100@0.1, b 900@0.15, c 150@0.01", [["a", "c"], ["b"]]),
    (121, "hrrn", {"B": 3}, "a 900@1, b 10, c 20", [["a", "b", "c"]]),
    (
        122,
        "window",
        {"B": 2},
        "300, 100, 500",
        [[300, 100], [500]],
    ),  # equal waste: the shorter audio
    (123, "window", {"B": 3, "R": 0.8}, "500, 100, 450, 420, 90", [[500, 450, 420], [100, 90]]),
    (
        124,
        "window",
        {"B": 2, "R": 0.9},
        "100@1, 500, 95",
        [[100, 95], [500]],
    ),  # guards hold for the overdue
    (
        125,
        "window",
        {"B": 8, "sizes": (1, 2, 4)},
        "100, 900, 110, 880, 95",
        [[100, 900, 110, 880], [95]],
    ),
    (126, "window", {"B": 4, "F": 600}, "200, 210, 190, 220", [[200, 190], [210, 220]]),
    (127, "window", {"B": 1}, "500, 100", [[500], [100]]),
    (128, "window", {"B": 2}, "a 100 p3 @1, b 500 p9 @2, c 110", [["b", "c"], ["a"]]),
    (
        129,
        "window",
        {"B": 2, "window_frames": 3000},
        "100, 900, 110",
        [[100, 110], [900]],
    ),  # the order is the sizes'
    (130, "cost", {"B": 4}, "1000, 100, 100, 100", [[1000], [100, 100, 100]]),
    (131, "cost", {"B": 1}, "500, 100", [[500], [100]]),
    (132, "cost", {"B": 4, "F": 250}, "100, 100, 100", [[100, 100], [100]]),
    (133, "cost", {"B": 4, "R": 0.5}, "100, 30, 100, 30", [[100, 100], [30, 30]]),
    (134, "cost", {"B": 4}, "a 100, b 100 p1, c 100 p1", [["a"], ["b", "c"]]),
    (135, "cost", {"B": 4}, "a 100, b 100 p1 @1, c 100 p1", [["b", "a"], ["c"]]),
    (136, "cost", {"B": 4, "sizes": (1, 4)}, "100, 100, 100", [[100], [100], [100]]),
]


@pytest.mark.parametrize(
    ("policy", "options", "text", "batches"), [c[1:] for c in ORDERED], ids=[c[0] for c in ORDERED]
)
def test_successive_batches_in_order_of_arrival(policy, options, text, batches):
    found = dispatch(policy, text, len(batches), **options)
    by_name = isinstance(batches[0][0], str)
    assert [
        [r.request_id if by_name else r.num_frames for r in batch] for batch in found
    ] == batches


def test_case_9_sjf_pairs_the_shortest():
    found = dispatch("sjf", "300, 100, 200, 50", 2, B=2)
    assert [{r.num_frames for r in batch} for batch in found] == [{50, 100}, {200, 300}]


@pytest.mark.parametrize("policy", ["fcfs", "window", "bucket", "sjf"])
def test_case_2_the_largest_rung_goes_and_the_rest_is_held_until_it_is_due(policy):
    clock = FakeClock()
    scheduler = make(policy, clock, B=16, sizes=(4, 8))
    for request in parse(", ".join(["200"] * 10), clock.now):
        scheduler.add_request(request)
    assert [len(scheduler.schedule().offline_batch) for _ in range(2)] == [8, 0]
    clock.now = scheduler.next_wakeup()
    assert clock.now == 1000.2
    assert len(scheduler.schedule().offline_batch) == 2


@pytest.mark.parametrize("policy", ALL)
def test_case_3_too_few_are_held_unless_overdue(policy):
    assert dispatch(policy, "200, 200, 200", 1, sizes=(4, 8)) == [[]]
    assert [len(batch) for batch in dispatch(policy, "200@1, 200@1, 200@1", 1, sizes=(4, 8))] == [3]


def test_case_4_what_is_left_keeps_its_order():
    clock = FakeClock()
    scheduler = make("bucket", clock, B=16, sizes=(4,))
    for request in parse("100, 101, 102, 103, 104, 105", clock.now):
        scheduler.add_request(request)
    assert [r.num_frames for r in scheduler.schedule().offline_batch] == [100, 101, 102, 103]
    clock.advance(0.2)
    assert [r.num_frames for r in scheduler.schedule().offline_batch] == [104, 105]


def test_case_19_a_request_is_filed_behind_its_own_and_better_classes():
    clock = FakeClock()
    scheduler = make("fcfs", clock, B=1)
    for request in parse("a 9 p5, b 9, c 9 p2, d 9 p5, e 9", clock.now):
        scheduler.add_request(request)
    order = [scheduler.schedule().offline_batch[0].request_id for _ in range(5)]
    assert order == ["b", "e", "c", "a", "d"]
    for request in parse("a 9 p5 @1, b 9, c 9 p1", clock.now):
        scheduler.add_request(request)
    scheduler.add_request(Request("new", 9))
    assert [scheduler.schedule().offline_batch[0].request_id for _ in range(4)] == [
        "a",
        "b",
        "new",
        "c",
    ]


@pytest.mark.parametrize("policy", ALL)
def test_case_20_the_bound_is_reached_at_equality(policy):
    clock = FakeClock(0.0)
    scheduler = make(policy, clock, sizes=(2,), W=0.5)
    scheduler.add_request(Request("a", 100))
    clock.advance(0.5)
    assert len(scheduler.schedule().offline_batch) == 1


@pytest.mark.parametrize("policy", ["fcfs", "bucket", "sjf", "hrrn", "window"])
def test_case_21_a_forced_batch_never_exceeds_the_top_rung(policy):
    found = dispatch(policy, ", ".join(["200@1"] * 20), 3, sizes=(4, 8))
    assert [len(batch) for batch in found] == [8, 8, 4]


def test_case_22_where_guards_refuse_every_rung_the_anchor_ships_alone():
    clock = FakeClock()
    scheduler = make("window", clock, B=8, sizes=(4, 8), R=0.5)
    for request in parse("100, " + ", ".join(["1000"] * 7), clock.now):
        scheduler.add_request(request)
    found = [[r.num_frames for r in scheduler.schedule().offline_batch] for _ in range(3)]
    assert found == [[100], [1000] * 4, []]
    clock.advance(0.2)
    assert [r.num_frames for r in scheduler.schedule().offline_batch] == [1000] * 3


@pytest.mark.parametrize(
    ("options", "text", "parts"),
    [
        ({"F": 800}, ", ".join(["200"] * 10), [[200] * 4, [200] * 4, [200] * 2]),
        ({"F": 500}, "100, 100, 900, 100", [[100] * 3, [900]]),
        (
            {"sizes": (4,), "B": 8},
            "100, 10, 50, 200, 80, 30, 60, 20",
            [[10, 20, 30, 50], [60, 80, 100, 200]],
        ),
        ({"sizes": (4, 8), "B": 8}, "1, 2, 3, 4, 5, 6, 7", [[1, 2, 3, 4], [5, 6, 7]]),
        ({"B": 8}, ", ".join(map(str, range(1, 12))), [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]),
    ],
)
def test_cases_23_to_27_a_list_is_split(options, text, parts):
    clock = FakeClock()
    requests = parse(text, clock.now)
    found = make("window", clock, **options).split_offline_batch(requests)
    assert [[r.num_frames for r in part] for part in found] == parts


STREAMS = [
    ("28a", {"sizes": (4, 8)}, 0, "50, 50, 50, 50, 50", 4),
    ("28b", {"sizes": (4, 8)}, 0, "50, 50, 50", 0),
    ("28c", {"sizes": (4, 8), "W": 0.05}, 0, "50@1, 50@1, 50@1", 3),
    ("29a", {"sizes": (4, 8)}, 4, "50, 50, 50, 50, 50", 4),
    ("29b", {"sizes": (4, 8, 16)}, 8, "50, 50, 50", 0),
    ("above the top rung", {"sizes": (4, 8)}, 8, "50, 50, 50", 3),
    ("no more than fit", {"B": 4}, 3, "50, 50", 1),
]


@pytest.mark.parametrize(
    ("options", "num_running", "text", "num_admitted"),
    [c[1:] for c in STREAMS],
    ids=[c[0] for c in STREAMS],
)
def test_streams_are_admitted_by_the_ladder(options, num_running, text, num_admitted):
    clock = FakeClock()
    scheduler = make("window", clock, **options)
    for index in range(num_running):
        scheduler.add_request(Request(f"running{index}", 50, streaming=True))
    assert len(scheduler.schedule().newly_admitted) == num_running
    for request in parse(text, clock.now, streaming=True):
        scheduler.add_request(request)
    assert len(scheduler.schedule().newly_admitted) == num_admitted


@pytest.mark.parametrize(
    ("case", "options", "text", "admitted"),
    [
        (30, {"B": 2}, "r1 50, r2 50, r3 50", ["r1", "r2"]),
        (31, {"B": 2, "cohort": True}, "s1 300 p3 @1, s2 50, s3 900 @0.5", ["s1", "s3"]),
        ("by length", {"B": 2, "cohort": True}, "a 300, b 50, c 100", ["b", "c"]),
        ("by class, then length", {"B": 2, "cohort": True}, "a 300, b 50 p1, c 900", ["a", "c"]),
        ("by arrival", {"B": 2, "cohort": False}, "a 300, b 50, c 100", ["a", "b"]),
        ("by class, then arrival", {"B": 2, "cohort": False}, "a 300 p1, b 50, c 100", ["b", "c"]),
        ("overdue first", {"B": 1, "cohort": False}, "a 300, b 50 p9 @1", ["b"]),
    ],
)
def test_streams_are_admitted_in_order(case, options, text, admitted):
    clock = FakeClock()
    scheduler = make("window", clock, **options)
    for request in parse(text, clock.now, streaming=True):
        scheduler.add_request(request)
    assert [r.request_id for r in scheduler.schedule().newly_admitted] == admitted
