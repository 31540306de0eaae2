#!/usr/bin/env python3
"""Load systems side by side, open loop, and say how long each takes: the same weights, machine and arrivals.

Each system is asked for every utterance alone, then works off a backlog, then is sent requests at each load; systems
take turns in every repeat. A run's clock starts when a request is due. It goes on where it was stopped.

    .venv/bin/python scripts/load_test.py --model conformer --systems ours stock:1-2-4:0:1 stock:4-8-16:5000:1
    .venv/bin/python scripts/load_test.py --model whisper --systems ours faster-whisper --loads 0.8 0.95
    .venv/bin/python scripts/load_test.py --model conformer --sweep-stock     # which configuration of stock is best
    .venv/bin/python scripts/load_test.py --quick                             # two minutes

Systems: see oasr_backend/benchmark/line_up.py. docs/performance.md has the results.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from tqdm import tqdm

from oasr_backend.benchmark import speech
from oasr_backend.benchmark.arrivals import KINDS
from oasr_backend.benchmark.line_up import LineUp
from oasr_backend.benchmark.report import latency_table, throughput_table
from oasr_backend.benchmark.results import Results, write_csv
from oasr_backend.benchmark.sweep import Bench, Sweep, is_measured, mean_duration_s
from oasr_backend.errors import ConfigError
from oasr_backend.simulation.workload import LENGTHS
from oasr_backend.triton.server import LaunchError

ROOT = Path(__file__).parents[1]
MODELS = {
    "conformer": ("ctc", ("cards", "commands"), (1, 2, 4, 8), {}),
    "whisper": ("whisper", ("librivox",), (1, 2, 4), {}),
}
"""The family, the clips that it understands, our ladder, and the family's options."""

STOCK_LADDERS = ("1", "1-2-4", "1-2-4-8", "4-8-16")
STOCK_DELAYS_US = ("0", "5000", "20000")
STOCK_INSTANCES = ("1", "2")


def main() -> int:
    options = parse_arguments()
    try:
        asyncio.run(run(options))
    except (ConfigError, LaunchError, OSError) as error:
        print(f"error: {error} (logs: {options.output}/servers)", file=sys.stderr)
        return 2
    return 0


async def run(options: argparse.Namespace) -> None:
    """Run what was asked for, and print its tables."""
    family, folders, ladder, family_options = MODELS[options.model]
    paths = [
        path for name in folders for path in sorted((ROOT / "tests/data" / name).glob("*.wav"))
    ]
    clips = speech.read_clips(paths)
    limit_s = 30.0 if options.model == "whisper" else 35.0
    pool = speech.pool(clips, clipped(options.lengths, limit_s), options.utterances, options.seed)
    print(f"{len(pool)} utterances of {mean_duration_s(pool):.1f} s in the mean", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    results = Results(options.output / f"{options.model}.jsonl")
    names = stock_variants() if options.sweep_stock else options.systems
    sweep = Sweep(
        options.lengths,
        () if options.sweep_stock else options.loads,
        options.reference or names[0],
        options.requests,
        options.backlog,
        options.repeats,
        options.kind,
    )
    servers = options.output / "servers"
    shutil.rmtree(servers, ignore_errors=True)
    engine = dict(option.split("=", 1) for option in options.engine)
    line_up = LineUp(family, family_options, ladder, engine, options.sherpa, servers)
    groups = [[name] for name in names] if options.sweep_stock else [names]
    for group in groups:
        await measure(line_up, group, pool, results, sweep)
    for line in throughput_table(results, names, options.lengths, sweep.reference):
        print(line)
    if sweep.loads:
        print()
        for line in latency_table(
            results, names, options.lengths, options.kind, sweep.loads, sweep.reference
        ):
            print(line)
    write_csv(options.output / f"{options.model}.csv", results)


async def measure(
    line_up: LineUp,
    names: Sequence[str],
    pool: Sequence[speech.Samples],
    results: Results,
    sweep: Sweep,
) -> None:
    """Start systems together, run what is missing of a sweep, and stop them."""
    if is_measured(sweep, names, results):
        return
    systems = [line_up.system(name) for name in names]
    running = []
    try:
        for system in systems:
            await system.start()
            running.append(system)
        bench = Bench(systems, pool, results, progress)
        await bench.learn_texts()
        await bench.run(sweep)
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


def stock_variants() -> list[str]:
    """Return the configurations of the peer that are worth trying."""
    return [
        f"stock:{':'.join(variant)}"
        for variant in product(STOCK_LADDERS, STOCK_DELAYS_US, STOCK_INSTANCES)
    ]


def clipped(lengths: str, limit_s: float) -> Callable[[random.Random], float]:
    """Return lengths of a distribution, none above what the model hears at once."""
    return lambda rng: min(limit_s, LENGTHS[lengths](rng))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="conformer")
    add("--systems", nargs="+", default=["stock:4-8-16", "ours"])
    add("--reference", help="the system whose throughput the loads count in (default: the first)")
    add("--lengths", choices=LENGTHS, default="librispeech")
    add("--kind", choices=KINDS, default="poisson")
    add("--loads", type=float, nargs="+", default=[0.8, 0.95, 1.05])
    add("--requests", type=int, default=1000, help="of a run")
    add("--backlog", type=int, default=400, help="requests of the runs that measure throughput")
    add("--repeats", type=int, default=5)
    add("--utterances", type=int, default=200, help="different ones")
    add("--engine", nargs="*", default=[], metavar="NAME=VALUE", help="options of our engine")
    add("--sherpa", type=Path, help="a folder that export_wenet.py --sherpa-onnx has written")
    add("--sweep-stock", action="store_true", help="try the peer's configurations, one by one")
    add("--seed", type=int, default=1)
    add("--output", type=Path, default=ROOT / ".cache" / "load_test")
    add("--quick", action="store_true", help="a run of two minutes, for the tests")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.backlog, options.repeats, options.utterances = 40, 20, 1, 10
        options.loads = [0.8]
    return options


if __name__ == "__main__":
    sys.exit(main())
