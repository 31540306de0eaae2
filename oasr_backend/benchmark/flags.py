"""The flags of scripts/load_test.py, and which values they take. It runs nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from oasr_backend.benchmark import line_up
from oasr_backend.benchmark.arrivals import KINDS
from oasr_backend.simulation.workload import LENGTHS

N = TypeVar("N", int, float)

ROOT = Path(__file__).parents[2]

STOCK_LADDERS = ("1", "1-2-4", "1-2-4-8", "4-8-16")
STOCK_DELAYS_US = ("0", "5000", "20000")
STOCK_INSTANCES = ("1", "2")
"""What --sweep-stock tries, each with each."""

MAX_REQUESTS = 1_000_000
MAX_LOAD = 100.0
MAX_STREAMS = 10_000
MAX_STREAM_S = 3600.0


def parse(arguments: Sequence[str], description: str | None) -> argparse.Namespace:
    """Read the command line; leaves the process where it cannot be read."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=line_up.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_flags(parser)
    options = parser.parse_args(arguments)
    if options.url and not options.streams:
        parser.error("--url is for --streams: whole utterances are sent to servers of its own")
    if options.streams and options.systems == parser.get_default("systems"):
        options.systems = ["ours"]
    if len(set(options.systems)) < len(options.systems):
        parser.error("--systems names a system twice")
    names = options.systems
    if options.reference and options.reference not in names and not options.sweep_stock:
        parser.error(f"--reference {options.reference} is none of --systems {' '.join(names)}")
    if options.quick:
        options.requests, options.backlog, options.repeats, options.utterances = 40, 20, 1, 10
        options.loads = [0.8]
    return options


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    requests = within(int, 1, MAX_REQUESTS)
    add("--model", choices=line_up.MODELS, default="conformer")
    add("--systems", nargs="+", default=["stock:1:0:2", "ours"])
    add("--reference", help="the system whose throughput the loads count in (default: the first)")
    add("--lengths", choices=LENGTHS, default="librispeech")
    add("--kind", choices=KINDS, default="poisson")
    add("--trace", type=Path, help="send what a CSV file says, in place of --lengths: time_s,file")
    add("--loads", type=within(float, 1e-3, MAX_LOAD), nargs="*", default=[0.8, 0.95, 1.05])
    add("--requests", type=requests, default=1000, help="of a run")
    add("--backlog", type=requests, default=400, help="requests of the runs for throughput")
    add("--repeats", type=within(int, 1, 1000), default=5)
    add("--utterances", type=within(int, 1, 10_000), default=200, help="different ones")
    add(
        "--streams",
        type=within(int, 1, MAX_STREAMS),
        nargs="+",
        help="measure live streams, so many at a time",
    )
    add("--url", help="of a server that runs, for streams (default: one is started)")
    add("--seconds", type=within(float, 0.1, MAX_STREAM_S), default=20.0, help="of a stream")
    add("--piece-ms", type=within(int, 1, 10_000), default=160, help="audio of a stream's request")
    for name, of in (("--options", "of the model"), ("--engine", "of our engine")):
        add(name, nargs="*", default=[], type=_pair, metavar="NAME=VALUE", help=f"options {of}")
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
    add("--quick", action="store_true", help="a run of at most two minutes, for the tests")


def within(number: type[N], least: float, most: float) -> Callable[[str], N]:
    """Return a reader of numbers from `least` to `most`, whose name argparse's errors show."""

    def read(text: str) -> N:
        value = number(text)
        if math.isnan(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    read.__name__ = number.__name__
    return read


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not as NAME=VALUE")
    return name, value
