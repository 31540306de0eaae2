#!/usr/bin/env python3
"""Measure what the scheduler itself costs: microseconds a dispatched request, by policy and by how many wait.

.venv/bin/python scripts/bench_scheduler.py --waiting 1000 100000 --policies window cost

Each step dispatches one batch and adds as many requests, so that the queue stays as deep as it is; both are counted.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections.abc import Iterator
from math import inf
from statistics import median

from oasr_backend.config import EngineConfig
from oasr_backend.request import FRAMES_PER_SECOND, Request
from oasr_backend.scheduler import Scheduler
from oasr_backend.simulation.workload import LENGTHS

POLICIES = ("fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive")
NUM_CLASSES = {"one class": 1, "many": 8}
ARRIVAL_GAP_S = 0.001
SPARE = 1024  # requests that the last batch of a round may go beyond it


class Clock:
    """Stands still but for arrivals."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def main() -> None:
    options = parse_arguments()
    print(
        f"Microseconds of CPU time a dispatched request, at most {options.cap} a batch: the median of ",
        end="",
    )
    print(f"{options.rounds} rounds of {options.dispatched} requests (least to greatest).")
    print("overdue: all have waited too long.")
    print(f"{'policy':>9} {'waiting':>8}", *(f"{name:>22}" for name in columns()), f"{'bytes':>7}")
    for policy in options.policies:
        for num_waiting in options.waiting:
            cells = [
                cell(policy, num_waiting, classes, max_wait_s, options)
                for classes in NUM_CLASSES.values()
                for max_wait_s in (inf, 0.0)
            ]
            size = bytes_per_request(policy, num_waiting, options.cap)
            print(
                f"{policy:>9} {num_waiting:>8}",
                *(f"{c:>22}" for c in cells),
                f"{size:>7.0f}",
                flush=True,
            )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--waiting", nargs="+", type=int, default=[10, 1_000, 10_000, 100_000])
    parser.add_argument("--cap", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dispatched", type=int, default=3000, help="requests of a round")
    return parser.parse_args()


def columns() -> Iterator[str]:
    for name in NUM_CLASSES:
        yield name
        yield f"{name}, overdue"


def cell(
    policy: str, num_waiting: int, num_classes: int, max_wait_s: float, options: argparse.Namespace
) -> str:
    """Measure one configuration and return it as a cell of the table."""
    config = EngineConfig(
        max_batch_size=options.cap, schedule_policy=policy, max_wait_time=max_wait_s
    )
    clock = Clock()
    scheduler = Scheduler(config, clock)
    arrivals = requests(num_classes, clock)
    for _ in range(num_waiting):
        scheduler.add_request(next(arrivals))
    costs = [round_us(scheduler, arrivals, options.dispatched) for _ in range(options.rounds)]
    return f"{median(costs):.1f} ({min(costs):.1f}-{max(costs):.1f})"


def round_us(scheduler: Scheduler, arrivals: Iterator[Request], num_wanted: int) -> float:
    """Dispatch so many requests, adding one for each; return microseconds of CPU time a request."""
    num_dispatched, spent_s = 0, 0.0
    fresh = iter([next(arrivals) for _ in range(num_wanted + SPARE)])
    while num_dispatched < num_wanted:
        started = time.process_time()
        batch = scheduler.schedule().offline_batch
        for _ in batch:
            scheduler.add_request(next(fresh))
        spent_s += time.process_time() - started
        num_dispatched += len(batch)
    return spent_s / num_dispatched * 1e6


def bytes_per_request(policy: str, num_waiting: int, cap: int) -> float:
    """Return the memory that one waiting request takes, itself and its place in every order."""
    config = EngineConfig(max_batch_size=cap, schedule_policy=policy, max_wait_time=inf)
    clock = Clock()
    arrivals = requests(1, clock)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    scheduler = Scheduler(config, clock)
    for _ in range(num_waiting):
        scheduler.add_request(next(arrivals))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / num_waiting


def requests(num_classes: int, clock: Clock) -> Iterator[Request]:
    """Yield requests of LibriSpeech-like lengths, one a millisecond of the clock."""
    rng = random.Random(0)
    number = 0
    while True:
        frames = round(LENGTHS["librispeech"](rng) * FRAMES_PER_SECOND)
        yield Request(
            f"{number:09d}", frames, priority=rng.randrange(num_classes), arrival_time=clock.now
        )
        number += 1
        clock.now += ARRIVAL_GAP_S


if __name__ == "__main__":
    main()
