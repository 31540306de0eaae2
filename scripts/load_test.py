#!/usr/bin/env python3
"""Load systems side by side, open loop, and say how long each takes: the same weights, machine and arrivals.

Each system is asked for every utterance alone, then works off a backlog, then is sent requests at each load; systems
take turns in every repeat. A run's clock starts when a request is due.

    .venv/bin/python scripts/load_test.py --model conformer --systems ours stock:1-2-4:0:1 stock:4-8-16:5000:1
    .venv/bin/python scripts/load_test.py --model whisper --systems ours faster-whisper --loads 0.8 0.95
    .venv/bin/python scripts/load_test.py --model conformer --sweep-stock     # which configuration of stock is best
    .venv/bin/python scripts/load_test.py --quick                             # two minutes
    .venv/bin/python scripts/load_test.py --streams 100 200 --url localhost:8001   # live streams, a server that runs

So many live streams speak at a time, and when one ends another begins: what is measured is a while in which each does
so once. The table has the latency of texts from the last sample that each needs, the first word from a stream's begin,
the final text (median, and "its p99") from its last sample, how late the generator was ("late p99"), how many of the
machine's cores were busy ("cores"), how many of those this process kept so ("own": the generator, and what runs in
process), and texts that differ from those of the same utterance alone ("differ").
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import StatisticsError, correlation, mean, median

from tqdm import tqdm

from oasr_backend.allocator import prepare_heap
from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.benchmark import line_up, plots, report, speech, streams
from oasr_backend.benchmark.arrivals import Due, read_trace
from oasr_backend.benchmark.figures import Figures
from oasr_backend.benchmark.flags import parse
from oasr_backend.benchmark.folder import Folder
from oasr_backend.benchmark.line_up import LineUp
from oasr_backend.benchmark.results import Cell, Results, write_csv
from oasr_backend.benchmark.ruler import GONE
from oasr_backend.benchmark.streams import StreamSystem
from oasr_backend.benchmark.sweep import (
    TRACE,
    TRACE_LOAD,
    Bench,
    Sweep,
    durations_s,
    is_measured,
)
from oasr_backend.errors import ConfigError
from oasr_backend.simulation.plots import load_pyplot
from oasr_backend.simulation.workload import LENGTHS
from oasr_backend.triton.server import LaunchError

ROOT = Path(__file__).parents[1]

MAX_LENGTHS_S = {"conformer": 35.0, "whisper": 30.0}
"""Of drawn utterances, in seconds: none above what the model hears at once."""

SETTINGS = ("model", "trace", "utterances", "seconds", "piece_ms", "options", "engine", "seed")
"""Flags that no two runs in one folder may differ in: nothing else tells what was measured apart by them."""


def main() -> int:
    options = parse(sys.argv[1:], __doc__)
    prepare_heap()  # as the servers do, for the systems in this process
    try:
        with Folder(options.output) as folder:
            asyncio.run(run_until_stopped(options, folder))
    except (ConfigError, LaunchError, OSError) as error:
        print(f"error: {error} (logs: {options.output}/servers)", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        print("stopped: --resume goes on from here", file=sys.stderr)
        return 130
    return 0


async def run_until_stopped(options: argparse.Namespace, folder: Folder) -> None:
    """Run; where a person or a machine ends it, servers are stopped first."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await run(options, folder)


async def run(options: argparse.Namespace, folder: Folder) -> None:
    """Run what was asked for, and print its tables."""
    family, folders, ladder = line_up.MODELS[options.model]
    paths = [
        path for name in folders for path in sorted((ROOT / "tests/data" / name).glob("*.wav"))
    ]
    clips = speech.read_clips(paths)
    systems = LineUp(
        family,
        dict(options.options),
        ladder,
        dict(options.engine),
        options.sherpa,
        options.output / "servers",
    )
    if options.plots:
        load_pyplot()
    settings = {name: getattr(options, name) for name in SETTINGS}
    if options.streams:
        running = [systems.streams(name, options.url) for name in options.systems]
        folder.begin(settings, options.resume)
        await run_streams(options, running, clips)
        return
    trace: Sequence[Due] = ()
    if options.trace:
        trace, traced = read_trace(options.trace)
        pool = speech.read_clips(traced)
        options.lengths, options.kind, options.loads = options.trace.name, TRACE, [TRACE_LOAD]
    else:
        length = clipped(options.lengths, MAX_LENGTHS_S[options.model])
        pool = speech.pool(clips, length, options.utterances, options.seed)
    names = stock_variants(options) if options.sweep_stock else options.systems
    for name in names:
        systems.system(name)  # refused before the first one is measured
    print(f"{len(pool)} utterances of {mean(durations_s(pool)):.1f} s in the mean", flush=True)
    folder.begin(settings, options.resume)
    results = Results(options.output / f"{options.model}.jsonl", Figures)
    sweep = Sweep(
        options.lengths,
        () if options.sweep_stock else options.loads,
        options.reference or names[0],
        options.requests,
        options.backlog,
        options.repeats,
        options.kind,
        trace,
    )
    groups = [[name] for name in names] if options.sweep_stock else [names]
    for group in groups:
        alone_s = await measure(systems, group, pool, results, sweep) or read_alone(options)
        if set(alone_s) == set(group):
            report_alone(options, durations_s(pool), alone_s)
    print_tables(options, names, sweep, results)
    write_csv(options.output / f"{options.model}.csv", results)


def print_tables(
    options: argparse.Namespace, names: Sequence[str], sweep: Sweep, results: Results[Figures]
) -> None:
    """Print what a sweep has measured, and draw it where that was asked for."""
    lengths, kind, peer = sweep.lengths, sweep.kind, sweep.reference
    if not sweep.trace:
        print(*report.throughput_table(results, names, lengths, peer), sep="\n")
        if len(names) > 2 and not options.sweep_stock:
            print("", *report.ratio_table(results, names, lengths), sep="\n")
    if sweep.loads:
        print("", *report.latency_table(results, names, lengths, kind, sweep.loads, peer), sep="\n")
        if options.plots:
            path = options.output / f"{options.model}-{lengths}-{kind}.png"
            plots.plot_latencies(path, results, names, lengths, kind, sweep.loads)


async def run_streams(
    options: argparse.Namespace, systems: Sequence[StreamSystem], clips: Sequence[Samples]
) -> None:
    """Run live streams on the systems by turns, and print their table."""
    results = Results(options.output / "streams.jsonl", streams.StreamFigures)
    rng = random.Random(options.seed)
    length = round(options.seconds * SAMPLE_RATE_HZ)
    utterances = [speech.utterance(clips, length, rng) for _ in range(options.utterances)]
    pacing = streams.Pacing(options.piece_ms)
    running = []
    try:
        for system in systems:
            await system.start()
            running.append(system)
        expected = {s.name: await streams.alone(s, utterances, pacing) for s in running}
        for repeat, number, system in product(range(options.repeats), options.streams, running):
            cell = Cell(system.name, "", "streams", number, 0.0, repeat)
            if results.find(cell) is None:
                title = f"{system.name}, {number} streams, repeat {repeat + 1}"
                on_done = progress(title, number)
                heard = await streams.paced(system, utterances, number, pacing, repeat, on_done)
                if gone := [error for error in heard.errors if GONE in error]:
                    raise ConfigError(f"{title}: {len(gone)} pieces were not answered: {gone[0]}")
                results.add(cell, streams.figures_of(heard, expected[system.name]))
    finally:
        for system in running:
            await system.stop()
    print(
        f"{options.piece_ms} ms a request, encoder chunks of {pacing.chunk_ms:g} ms, streams of {options.seconds:g} s, "
        f"{options.repeats} repeats; milliseconds"
    )
    for line in report.stream_table(results, options.systems, options.streams):
        print(line)


def report_alone(
    options: argparse.Namespace, lengths_s: Sequence[float], alone_s: Mapping[str, Sequence[float]]
) -> None:
    """Say how the service time of an utterance goes with its length: what a policy that knows lengths can gain."""
    if any(len(times_s) != len(lengths_s) for times_s in alone_s.values()):
        return  # of another pool
    for name, times_s in alone_s.items():
        print(
            f"{name}, alone: {1e3 * median(times_s):.0f} ms in the median, correlation with the duration "
            f"{_correlation(lengths_s, times_s)}",
            flush=True,
        )
    with alone_file(options).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["duration_s", *alone_s])
        writer.writerows(zip(lengths_s, *alone_s.values(), strict=True))
    if options.plots:
        plots.plot_service_times(options.output / f"{options.model}-alone.png", lengths_s, alone_s)


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> str:
    try:
        return f"{correlation(xs, ys):.2f}"
    except StatisticsError:  # one utterance, or all alike
        return "unknown"


def read_alone(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the times without load that a sweep which is resumed has measured last."""
    try:
        with alone_file(options).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: [float(row[name]) for row in rows] for name in list(rows[0])[1:]}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, IndexError):
        print(f"{alone_file(options)} cannot be read: the times alone are left out", flush=True)
        return {}


def alone_file(options: argparse.Namespace) -> Path:
    path: Path = options.output / f"{options.model}-alone.csv"
    return path


async def measure(
    line_up: LineUp,
    names: Sequence[str],
    pool: Sequence[Samples],
    results: Results[Figures],
    sweep: Sweep,
) -> dict[str, list[float]]:
    """Start systems together, run what is missing of a sweep, and stop them; return their times without load."""
    if is_measured(sweep, names, results):
        return {}
    systems = [line_up.system(name) for name in names]
    running = []
    try:
        for system in systems:
            await system.start()
            running.append(system)
        bench = Bench(systems, pool, results, progress)
        alone_s = await bench.learn_texts()
        await bench.run(sweep)
        return alone_s
    finally:
        for system in running:
            await system.stop()


def progress(title: str, total: int) -> Callable[[], None]:
    """Show a bar on a terminal."""
    bar = tqdm(desc=title, total=total, leave=False, disable=None)

    def step() -> None:
        bar.update()
        if bar.n >= total:
            bar.close()

    return step


def stock_variants(options: argparse.Namespace) -> list[str]:
    """Return the configurations of the peer that are worth trying."""
    variants = product(options.stock_ladders, options.stock_delays, options.stock_instances)
    return [f"stock:{':'.join(variant)}" for variant in variants]


def clipped(lengths: str, limit_s: float) -> Callable[[random.Random], float]:
    """Return lengths of a distribution, none above what the model hears at once."""
    return lambda rng: min(limit_s, LENGTHS[lengths](rng))


if __name__ == "__main__":
    sys.exit(main())
