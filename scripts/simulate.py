#!/usr/bin/env python3
"""Compare scheduling policies on a simulated machine: the real scheduler under a fake clock.

A table of every policy, and of fcfs at its best batch size; latencies in seconds:
  .venv/bin/python scripts/simulate.py --lengths uniform --service gpu --rates 0.8 1.0 1.2
What is claimed of the policies, with a verdict on each claim (exit status 1 where one fails):
  .venv/bin/python scripts/simulate.py --experiment cost
Your own traffic on your own server, by the times that it keeps at its cost_table_path:
  .venv/bin/python scripts/simulate.py --trace arrivals.csv --service costs.json --preferred-batch-size 1 2 4
docs/scheduling.md tells more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from oasr_backend.errors import ConfigError
from oasr_backend.simulation.cases import Lab
from oasr_backend.simulation.experiments import EXPERIMENTS, Claim
from oasr_backend.simulation.flags import (
    NUM_REQUESTS,
    NUM_SEEDS,
    check_targets,
    check_together,
    lab_of,
    parse,
    plan_of,
)
from oasr_backend.simulation.plots import load_pyplot, plot_latencies
from oasr_backend.simulation.report import table, write_csv
from oasr_backend.simulation.sweep import Row, check_policies, sweep


def main() -> int:
    flags = parse(sys.argv[1:], __doc__)
    lab = lab_of(flags, sys.stderr.isatty())
    try:
        check_together(flags)
        if flags.experiment:
            return run_experiments(flags.experiment, lab)
        compare(flags, lab)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def compare(flags: argparse.Namespace, lab: Lab) -> None:
    """Print the tables, and write the files that were asked for."""
    plan = plan_of(flags)
    check_policies(plan)
    if flags.plots:
        load_pyplot()
    check_targets(flags)
    print_tables(sweep(plan, lab), flags)


def print_tables(groups: Iterable[list[Row]], flags: argparse.Namespace) -> None:
    everything: list[Row] = []
    for rows in groups:
        everything += rows
        first = rows[0]
        print(
            f"\n{first.title}; fcfs works off {first.saturation:.1f} requests/s at cap {first.saturation_cap}"
        )
        print("\n".join(table(rows)), flush=True)
        if flags.plots:
            print(f"plotted {plot_latencies(flags.plots, rows)}")
    if flags.csv:
        write_csv(flags.csv, everything)
        print(f"wrote {flags.csv}")


def run_experiments(names: list[str], lab: Lab) -> int:
    """Print the verdicts of experiments; returns 1 where a claim fails."""
    if (lab.num_requests, lab.num_seeds) != (NUM_REQUESTS, NUM_SEEDS):
        print(
            f"The verdicts are stated for {NUM_REQUESTS} requests and {NUM_SEEDS} seeds: "
            f"at {lab.num_requests} and {lab.num_seeds} a claim may fail that holds, or hold by chance."
        )
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
