#!/usr/bin/env python3
"""Compare scheduling policies on a simulated machine: the real scheduler under a fake clock.

A table of every policy, and of fcfs at its best batch size; latencies in seconds:
  .venv/bin/python scripts/simulate.py --lengths uniform --service gpu --rates 0.8 1.0 1.2
What is claimed of the policies, with a verdict on each claim (exit status 1 where one fails):
  .venv/bin/python scripts/simulate.py --experiment cost
Your own traffic on your own machine:
  .venv/bin/python scripts/simulate.py --trace arrivals.csv --service cost_table.json
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.simulation.cases import Lab
from oasr_backend.simulation.experiments import EXPERIMENTS, Claim
from oasr_backend.simulation.plots import load_pyplot, plot_latencies
from oasr_backend.simulation.report import table, write_csv
from oasr_backend.simulation.service import SERVICES, read_service
from oasr_backend.simulation.sweep import POLICIES, WORKLOADS, Plan, Row, sweep
from oasr_backend.simulation.trace import read_trace
from oasr_backend.simulation.workload import LENGTHS


def main() -> int:
    options = parse_arguments()
    lab = Lab(options.requests, options.seeds, options.processes, sys.stderr.isatty())
    try:
        if options.experiment:
            return run_experiments(options.experiment, lab)
        compare(options, lab)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--experiment", nargs="+", choices=[*EXPERIMENTS, "all"], help="measure what is claimed")
    add("--workload", choices=[w for w in WORKLOADS if w != "trace"], default="steady")
    add("--trace", type=Path, help="a CSV file of arrivals: time_s,duration_s[,tenant]")
    add("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    add(
        "--service",
        nargs="+",
        default=list(SERVICES),
        help="cpu, gpu, linear, ms as 10+2.1 (a batch + a padded second of audio), or a cost table's JSON file",
    )
    add(
        "--rates",
        nargs="+",
        type=above_0(float),
        default=[0.8, 1.0, 1.2],
        help="times fcfs' saturation",
    )
    add("--policies", nargs="+", default=list(POLICIES))
    add("--cap", type=above_0(int), default=16, help="max_batch_size")
    add("--max-wait-time", type=above_0(float), default=inf, help="the starvation bound in seconds")
    add("--tenants", type=tenant_shares, default=(), help="shares of the arrivals: loud=8,quiet=1")
    add("--tenant-fairness", action="store_true", help="serve the least served tenant first")
    add("--requests", type=above_0(int), default=4000)
    add("--seeds", type=above_0(int), default=5)
    add("--processes", type=above_0(int), default=min(2, os.cpu_count() or 1))
    add("--csv", type=Path, help="write the figures of every seed to this file")
    add("--plots", type=Path, help="draw latency against load into this folder (needs matplotlib)")
    return parser.parse_args()


def above_0(number: type) -> Callable[[str], float]:
    """Return a reader of numbers above 0, whose name argparse's errors show."""

    def read(text: str) -> float:
        value = number(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    read.__name__ = number.__name__
    return read


def tenant_shares(text: str) -> tuple[tuple[str, float], ...]:
    """Read "loud=8,quiet=1"."""
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        shares = tuple((name, float(share)) for name, share in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list as loud=8,quiet=1") from None
    if not all(0 < share < inf for _, share in shares):
        raise argparse.ArgumentTypeError(f"{text!r} holds a share that is not above 0")
    return shares


def compare(options: argparse.Namespace, lab: Lab) -> None:
    """Print the tables, and write the files that were asked for."""
    if options.plots:
        load_pyplot()
    plan = Plan(
        workload="trace" if options.trace else options.workload,
        lengths=options.lengths,
        services={name: read_service(name) for name in options.service},
        rates=options.rates,
        policies=options.policies,
        cap=options.cap,
        max_wait_time=options.max_wait_time,
        tenants=options.tenants,
        tenant_fairness=options.tenant_fairness,
        trace=read_trace(options.trace) if options.trace else (),
    )
    print_tables(sweep(plan, lab), plan, options)


def print_tables(groups: Iterable[list[Row]], plan: Plan, options: argparse.Namespace) -> None:
    everything: list[Row] = []
    for rows in groups:
        everything += rows
        first = rows[0]
        print(
            f"\n{plan.workload}, {first.lengths} lengths, {first.service} service; "
            f"fcfs works off {first.saturation:.1f} requests/s at cap {plan.cap}"
        )
        print("\n".join(table(rows)), flush=True)
        if options.plots:
            print(f"plotted {plot_latencies(options.plots, rows)}")
    if options.csv:
        write_csv(options.csv, everything)
        print(f"wrote {options.csv}")


def run_experiments(names: list[str], lab: Lab) -> int:
    """Print the verdicts of experiments; returns 1 where a claim fails."""
    claims: list[Claim] = []
    for name in EXPERIMENTS if "all" in names else names:
        print(f"\n== {name}")
        for line in EXPERIMENTS[name](lab):
            print(line, flush=True)
            if isinstance(line, Claim):
                claims.append(line)
    failed = [claim for claim in claims if not claim.holds]
    print(f"\n{len(claims) - len(failed)} of {len(claims)} claims hold")
    for claim in failed:
        print(claim)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
