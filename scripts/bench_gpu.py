#!/usr/bin/env python3
"""Measure a bundle on this machine's card: latency by rung, throughput of whole utterances, and live streams.

    .venv/bin/python scripts/bench_gpu.py --runtimes torch tensorrt --output gpu.json

Each runtime on the card runs with its captured graphs, and as NAME:eager without any. Times are medians in
milliseconds, from host memory to host memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from oasr_backend.bundle import read_bundle
from oasr_backend.errors import ConfigError
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.ctc import CtcConfig, demo_model
from oasr_backend.models.ctc_streams import CtcStreams
from oasr_backend.models.streams import run
from oasr_backend.plans.card import compute_capability
from oasr_backend.runtime.choose import RUNTIMES as KNOWN
from oasr_backend.runtime.choose import Wish, load_runtime

SECONDS = (2.5, 10.0)
RUNTIMES_HERE = KNOWN[1:]  # each but auto
RUNTIMES = ["onnx", "torch:eager", "torch", "tensorrt:eager", "tensorrt"]


def main() -> None:
    options = parse_arguments()
    try:
        check(options)
        results: dict[str, Any] = {"machine": dict(machine()), "runtimes": {}}
    except ConfigError as error:
        sys.exit(f"error: {error}")
    for name in options.runtimes:
        try:
            results["runtimes"][name] = measure(name, options)
        except ConfigError as error:
            print(f"{name}: not measured: {error}", file=sys.stderr)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    if not results["runtimes"]:
        sys.exit("error: nothing was measured (see above)")
    show(results, options.rungs)


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError for what would only be found out after minutes of measuring."""
    for name in options.runtimes:
        kind, _, way = name.partition(":")
        if kind not in RUNTIMES_HERE or way not in ("", "eager"):
            raise ConfigError(
                f"runtime is {name!r}; it must be one of {', '.join(RUNTIMES_HERE)}, with :eager behind it or not"
            )
    if min(options.rungs) < 1 or options.rounds < 1:
        raise ConfigError("--rungs and --rounds must be from 1 up: correct them")
    if options.output and not options.output.parent.is_dir():
        raise ConfigError(f"{options.output.parent} is no folder: make it, or name another file")


def machine() -> Iterator[tuple[str, str]]:
    """Yield what the figures depend on."""
    yield "compute capability", compute_capability()
    for package in ("torch", "tensorrt-cu12", "onnxruntime"):
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
    try:
        import torch

        yield "card", torch.cuda.get_device_name()
    except (ImportError, RuntimeError, AssertionError):
        return


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a runtime's latencies in milliseconds, and what it gets done a second; NAME:eager captures nothing."""
    bundle = read_bundle(options.bundle)
    rungs = tuple(options.rungs)
    kind, _, way = name.partition(":")
    plans = options.plans or options.bundle
    wish = Wish(kind, options.bundle, plans, 1, rungs, (), 16, 4, captures=way != "eager")
    runtime = load_runtime(wish, bundle)
    rng = np.random.default_rng(0)
    offline = {}
    for seconds in SECONDS:
        samples = (0.1 * rng.normal(size=int(seconds * 16000))).astype(np.float32)
        for rows in rungs:
            time_s = timed(lambda: runtime.encode([samples] * rows, 0, -1), options.rounds)  # noqa: B023
            offline[f"{rows} x {seconds:g} s"] = round(time_s * 1e3, 3)
    best = max(
        rows * seconds / offline[f"{rows} x {seconds:g} s"] * 1e3
        for seconds in SECONDS
        for rows in rungs
    )
    result: dict[str, Any] = {"offline_ms": offline, "audio_seconds_a_second": round(best)}
    if bundle.streaming is not None:
        chunks = {rows: chunk_time_s(runtime, options, rows) for rows in rungs}
        chunk_s = CtcStreams(replace(CtcConfig(), model_dir=str(options.bundle)), 1, runtime)
        period_s = chunk_s.chunk_frames / 100
        result["chunks_ms"] = {f"{rows}": round(each * 1e3, 3) for rows, each in chunks.items()}
        result["real_time_streams"] = int(
            max(rows * period_s / each for rows, each in chunks.items())
        )
    result["runs"] = dict(runtime.runs())
    return result


def chunk_time_s(runtime: Any, options: argparse.Namespace, num_streams: int) -> float:
    """Return what a chunk of each of so many streams takes."""
    config = replace(CtcConfig(), model_dir=str(options.bundle))
    model = CtcStreams(config, num_streams, runtime)
    streams = [model.open(TranscribeOptions(), 16000) for _ in range(num_streams)]
    num_chunks = options.rounds + 3
    noise = np.random.default_rng(1).normal(size=16000 * (num_chunks + 2)).astype(np.float32)
    for stream in streams:
        stream.accept(0.1 * noise)
        assert model.reserve(stream)

    def step() -> None:
        for stream in streams:
            model.reserve(stream)
        run(model, streams, num_streams)

    return timed(step, options.rounds)


def timed(work: Any, rounds: int) -> float:
    """Return the median time of some work in seconds, after it has run three times."""
    for _ in range(3):
        work()
    times_s = []
    for _ in range(rounds):
        started_at = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started_at)
    return median(times_s)


def show(results: dict[str, Any], rungs: list[int]) -> None:
    """Print the tables."""
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    print(f"{'milliseconds, rows':>24}" + "".join(f"{rows:>9}" for rows in rungs))
    for name, result in results["runtimes"].items():
        for seconds in SECONDS:
            cells = [result["offline_ms"][f"{rows} x {seconds:g} s"] for rows in rungs]
            print(f"{f'{name}, {seconds:g} s':>24}" + "".join(f"{cell:>9.2f}" for cell in cells))
        if "chunks_ms" in result:
            cells = [result["chunks_ms"][f"{rows}"] for rows in rungs]
            print(f"{f'{name}, chunks':>24}" + "".join(f"{cell:>9.2f}" for cell in cells))
    for name, result in results["runtimes"].items():
        streams = result.get("real_time_streams")
        tail = f", {streams} streams in real time" if streams else ""
        counted = ", ".join(f"{number} {kind}" for kind, number in result["runs"].items())
        print(
            f"{name}: {result['audio_seconds_a_second']} seconds of audio a second{tail}"
            f"{f'; runs: {counted}' if counted else ''}"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bundle", type=Path, default=demo_model(), help="default: the demo model")
    add("--plans", type=Path, help="a folder of TensorRT plans (default: the bundle's own)")
    add("--runtimes", nargs="+", default=RUNTIMES)
    add("--rungs", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    add("--rounds", type=int, default=30)
    add("--output", type=Path, help="a JSON file of everything")
    return parser.parse_args()


if __name__ == "__main__":
    main()
