#!/usr/bin/env python3
"""Measure what batches of whole utterances take: t(rows, longest), where batching pays and where it does not.

    .venv/bin/python scripts/bench_batches.py ctc --rows 1 2 4 8 16 --seconds 2 5 10 20 30
    .venv/bin/python scripts/bench_batches.py whisper --options short_window=true

Rows of noise as long as each other, as the engine measures them when it loads a model. The table has milliseconds a
batch, and below it a row's share in times a batch of one; then what the names for profilers (`nvtx`) take while off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median

from oasr_backend.allocator import prepare_heap
from oasr_backend.blas import use_one_blas_thread
from oasr_backend.config import read_options
from oasr_backend.models import FAMILIES
from oasr_backend.models.base import FRAMES_PER_SECOND, Recognizer
from oasr_backend.spans import span

NUM_SPANS = 200_000
SPANS_A_BATCH = 6
"""prepare, schedule, step, features, forward, decode."""


def main() -> None:
    options = parse_arguments()
    prepare_heap()
    use_one_blas_thread()
    family = FAMILIES[options.family]
    named = dict(text.split("=", 1) for text in options.options)
    recognizer = family.load(read_options(family.options, named))
    print(
        f"{options.family} {named or ''}: medians of {options.rounds} rounds; milliseconds a batch"
    )
    print(f"{'rows':>5}" + "".join(f"{seconds:>9g} s" for seconds in options.seconds))
    table = []
    for rows in options.rows:
        times_s = [measure(recognizer, rows, s, options.rounds) for s in options.seconds]
        table.append(times_s)
        print_line(rows, [f"{time_s * 1e3:.1f}" for time_s in times_s])
    print("a row's share, in times a batch of one")
    for rows, times_s in zip(options.rows, table, strict=True):
        shares = [t / rows / one for t, one in zip(times_s, table[0], strict=True)]
        print_line(rows, [f"{share:.2f}" for share in shares])
    off_s = span_time_s()
    share = SPANS_A_BATCH * off_s / min(min(times_s) for times_s in table)
    print(f"a span that is off: {off_s * 1e9:.0f} ns; a batch's, of the shortest: {share:.5%}")


def measure(recognizer: Recognizer, num_rows: int, seconds: float, rounds: int) -> float:
    """Return the median time of a batch in seconds, after one that is not counted."""
    num_frames = round(seconds * FRAMES_PER_SECOND)
    recognizer.rehearse(num_rows, num_frames)
    times_s = []
    for _ in range(rounds):
        start = time.perf_counter()
        recognizer.rehearse(num_rows, num_frames)
        times_s.append(time.perf_counter() - start)
    return median(times_s)


def span_time_s() -> float:
    """Return what opening and closing a span takes while they are off."""
    start = time.perf_counter()
    for _ in range(NUM_SPANS):
        with span("off"):
            pass
    return (time.perf_counter() - start) / NUM_SPANS


def print_line(rows: int, cells: Sequence[str]) -> None:
    print(f"{rows:>5}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("family", choices=FAMILIES)
    add("--options", nargs="*", default=[], metavar="NAME=VALUE", help="of the model")
    add("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    add("--seconds", type=float, nargs="+", default=[2.0, 5.0, 10.0, 20.0, 30.0])
    add("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
