#!/usr/bin/env python3
"""Load systems side by side, open loop, and say how long each takes: the same weights, machine and arrivals.

Each system is asked for every utterance alone, then works off a backlog, then is sent requests at each load; systems
take turns in every repeat. A run's clock starts when a request is due.

    .venv/bin/python scripts/load_test.py --model conformer --systems ours stock:1-2-4:0:1 stock:4-8-16:5000:1
    .venv/bin/python scripts/load_test.py --model whisper --systems ours faster-whisper --loads 0.8 0.95
    .venv/bin/python scripts/load_test.py --model conformer --sweep-stock     # which configuration of stock is best
    .venv/bin/python scripts/load_test.py --quick                             # two minutes
    .venv/bin/python scripts/load_test.py --streams 100 200 --url localhost:8001   # live streams, a server that runs

Of streams the table has: the latency of texts from the last sample that each needs, the first word from a stream's
begin, the final text (median, and "its p99") from its last sample, how late the generator was ("late p99"), and texts
that differ from those of the same utterance alone ("differ").
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import correlation, mean, median

from tqdm import tqdm

from oasr_backend.allocator import prepare_heap
from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.benchmark import line_up, plots, report, speech, streams
from oasr_backend.benchmark.arrivals import KINDS, Due, read_trace
from oasr_backend.benchmark.figures import Figures
from oasr_backend.benchmark.line_up import LineUp
from oasr_backend.benchmark.results import Cell, Results, write_csv
from oasr_backend.benchmark.sweep import (
    TRACE,
    TRACE_LOAD,
    Bench,
    Sweep,
    durations_s,
    is_measured,
)
from oasr_backend.errors import ConfigError
from oasr_backend.simulation.workload import LENGTHS
from oasr_backend.triton.server import LaunchError

ROOT = Path(__file__).parents[1]
MODELS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...], dict[str, str]]] = {
    "conformer": ("ctc", ("cards", "commands"), (1, 2, 4), {}),
    "whisper": ("whisper", ("librivox",), (1, 2, 4), {}),
}
"""The family, the clips that it understands, our ladder, and the family's options."""

STOCK_LADDERS = ("1", "1-2-4", "1-2-4-8", "4-8-16")
STOCK_DELAYS_US = ("0", "5000", "20000")
STOCK_INSTANCES = ("1", "2")
"""What --sweep-stock tries, each with each."""


def main() -> int:
    options = parse_arguments()
    prepare_heap()  # as the servers do, for the systems in this process
    try:
        asyncio.run(run(options))
    except (ConfigError, LaunchError, OSError) as error:
        print(f"error: {error} (logs: {options.output}/servers)", file=sys.stderr)
        return 2
    return 0


async def run(options: argparse.Namespace) -> None:
    """Run what was asked for, and print its tables."""
    family, folders, ladder, family_options = MODELS[options.model]
    family_options = {**family_options, **pairs(options.options)}
    paths = [
        path for name in folders for path in sorted((ROOT / "tests/data" / name).glob("*.wav"))
    ]
    clips = speech.read_clips(paths)
    limit_s = 30.0 if options.model == "whisper" else 35.0
    servers = options.output / "servers"
    shutil.rmtree(servers, ignore_errors=True)
    systems = LineUp(family, family_options, ladder, pairs(options.engine), options.sherpa, servers)
    if options.streams:
        await run_streams(options, systems, clips)
        return
    trace: Sequence[Due] = ()
    if options.trace:
        trace, traced = read_trace(options.trace)
        pool = speech.read_clips(traced)
        options.lengths, options.kind, options.loads = options.trace.name, TRACE, [TRACE_LOAD]
    else:
        length = clipped(options.lengths, limit_s)
        pool = speech.pool(clips, length, options.utterances, options.seed)
    print(f"{len(pool)} utterances of {mean(durations_s(pool)):.1f} s in the mean", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    results = Results(options.output / f"{options.model}.jsonl", Figures)
    names = stock_variants(options) if options.sweep_stock else options.systems
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
    options: argparse.Namespace, line_up: LineUp, clips: Sequence[Samples]
) -> None:
    """Run live streams on the systems by turns, and print their table."""
    options.output.mkdir(parents=True, exist_ok=True)
    results = Results(options.output / "streams.jsonl", streams.StreamFigures)
    rng = random.Random(options.seed)
    length = round(options.seconds * SAMPLE_RATE_HZ)
    utterances = [speech.utterance(clips, length, rng) for _ in range(options.utterances)]
    pacing = streams.Pacing(options.piece_ms)
    running = []
    try:
        for name in options.systems:
            system = line_up.streams(name, options.url)
            await system.start()
            running.append(system)
        expected = {s.name: await streams.alone(s, utterances, pacing) for s in running}
        for repeat, number, system in product(range(options.repeats), options.streams, running):
            cell = Cell(system.name, "", "streams", number, 0.0, repeat)
            if results.find(cell) is None:
                title = f"{system.name}, {number} streams, repeat {repeat + 1}"
                on_done = progress(title, number)
                heard = await streams.paced(system, utterances, number, pacing, repeat, on_done)
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
    for name, times_s in alone_s.items():
        print(
            f"{name}, alone: {1e3 * median(times_s):.0f} ms in the median, correlation with the duration "
            f"{correlation(lengths_s, times_s):.2f}",
            flush=True,
        )
    with alone_file(options).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["duration_s", *alone_s])
        writer.writerows(zip(lengths_s, *alone_s.values(), strict=True))
    if options.plots:
        plots.plot_service_times(options.output / f"{options.model}-alone.png", lengths_s, alone_s)


def read_alone(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the times without load that a sweep which is resumed has measured last."""
    if not alone_file(options).exists():
        return {}
    with alone_file(options).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in list(rows[0])[1:]}


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


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE options by name."""
    return dict(text.split("=", 1) for text in texts)


def clipped(lengths: str, limit_s: float) -> Callable[[random.Random], float]:
    """Return lengths of a distribution, none above what the model hears at once."""
    return lambda rng: min(limit_s, LENGTHS[lengths](rng))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=line_up.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="conformer")
    add("--systems", nargs="+", default=["stock:4-8-16", "ours"])
    add("--reference", help="the system whose throughput the loads count in (default: the first)")
    add("--lengths", choices=LENGTHS, default="librispeech")
    add("--kind", choices=KINDS, default="poisson")
    add("--trace", type=Path, help="send what a CSV file says, in place of --lengths: time_s,file")
    add("--loads", type=float, nargs="*", default=[0.8, 0.95, 1.05])
    add("--requests", type=int, default=1000, help="of a run")
    add("--backlog", type=int, default=400, help="requests of the runs that measure throughput")
    add("--repeats", type=int, default=5)
    add("--utterances", type=int, default=200, help="different ones")
    add("--streams", type=int, nargs="+", help="measure live streams, so many at a time")
    add("--url", help="of a server that runs, for streams (default: one is started)")
    add("--seconds", type=float, default=20.0, help="that a stream lasts")
    add("--piece-ms", type=int, default=160, help="audio of a stream's request")
    add("--options", nargs="*", default=[], metavar="NAME=VALUE", help="options of the model")
    add("--engine", nargs="*", default=[], metavar="NAME=VALUE", help="options of our engine")
    add("--sherpa", type=Path, help="a folder that export_wenet.py --sherpa-onnx has written")
    add("--sweep-stock", action="store_true", help="try the peer's configurations, one by one")
    add("--stock-ladders", nargs="+", default=STOCK_LADDERS)
    add("--stock-delays", nargs="+", default=STOCK_DELAYS_US, help="microseconds")
    add("--stock-instances", nargs="+", default=STOCK_INSTANCES)
    add("--seed", type=int, default=1)
    add("--output", type=Path, default=ROOT / ".cache" / "load_test")
    add("--plots", action="store_true", help="draw too; needs matplotlib (requirements/plot.txt)")
    add(
        "--resume",
        action="store_true",
        help="keep what the last sweep in --output has measured, and go on",
    )
    add("--quick", action="store_true", help="a run of two minutes, for the tests")
    options = parser.parse_args()
    if not options.resume:
        for path in options.output.glob("*.jsonl"):
            path.unlink()
        alone_file(options).unlink(missing_ok=True)
    if options.streams and options.systems == parser.get_default("systems"):
        options.systems = ["ours"]
    if options.quick:
        options.requests, options.backlog, options.repeats, options.utterances = 40, 20, 1, 10
        options.loads = [0.8]
    return options


if __name__ == "__main__":
    sys.exit(main())
