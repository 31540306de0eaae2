#!/usr/bin/env python3
"""Compare scheduling policies on a simulated machine: the real scheduler under a fake clock.

.venv/bin/python scripts/simulate.py --lengths uniform --service gpu --rates 0.8 1.0 1.2
"""

from __future__ import annotations

import argparse
from math import inf
from statistics import mean

from oasr_backend.config import EngineConfig
from oasr_backend.simulation.run import Run, percentile, saturation, simulate
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.workload import LENGTHS, poisson

COLUMNS = ("p25", "p50", "p90", "p99", "max", "wait p50", "padding", "requests/s")


def main() -> None:
    options = parse_arguments()
    service = SERVICES[options.service]
    length = LENGTHS[options.lengths]
    fifo = config("fcfs", options.cap)
    limit = saturation(fifo, poisson(options.requests, 1.0, length, options.seeds), service)
    print(
        f"{options.lengths} lengths, {options.service} service, cap {options.cap}, {options.requests} requests, ",
        end="",
    )
    print(f"{options.seeds} seeds; fcfs works off {limit:.1f} requests/s. Latencies in seconds.")
    print(f"{'rate':>5} {'policy':>9}", *(f"{name:>10}" for name in COLUMNS))
    for rate in options.rates:
        for policy in options.policies:
            runs = [
                simulate(
                    config(policy, options.cap),
                    poisson(options.requests, rate * limit, length, seed),
                    service,
                )
                for seed in range(options.seeds)
            ]
            figures = [mean(column) for column in zip(*map(figures_of, runs), strict=True)]
            print(
                f"{rate:>5.2f} {policy:>9}", *(f"{value:>10.3f}" for value in figures), flush=True
            )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--lengths", choices=LENGTHS, default="librispeech")
    parser.add_argument("--service", choices=SERVICES, default="cpu")
    parser.add_argument(
        "--policies", nargs="+", default=["fcfs", "window", "sjf", "hrrn", "cost", "adaptive"]
    )
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[0.8, 1.0, 1.2], help="times fcfs' saturation"
    )
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cap", type=int, default=16)
    return parser.parse_args()


def config(policy: str, cap: int) -> EngineConfig:
    """Return a configuration without the wait bound: under overload it turns every policy into fcfs."""
    return EngineConfig(max_batch_size=cap, schedule_policy=policy, max_wait_time=inf)


def figures_of(run: Run) -> list[float]:
    """Return a run's figures in the order of COLUMNS."""
    latencies = [served.latency_s for served in run.served]
    waits = [served.wait_s for served in run.served]
    return [
        *(percentile(latencies, percent) for percent in (25, 50, 90, 99)),
        max(latencies),
        percentile(waits, 50),
        run.padding_ratio,
        run.throughput,
    ]


if __name__ == "__main__":
    main()
