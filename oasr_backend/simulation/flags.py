"""The flags of scripts/simulate.py: how they read, which go together, and the plan that they make. It runs nothing."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from oasr_backend.config import EngineConfig, read_options
from oasr_backend.errors import ConfigError
from oasr_backend.simulation.cases import NO_WAIT_BOUND, Lab
from oasr_backend.simulation.experiments import EXPERIMENTS
from oasr_backend.simulation.service import SERVICES, read_service
from oasr_backend.simulation.sweep import POLICIES, WITH_LENGTHS, WITH_RATES, WORKLOADS, Plan
from oasr_backend.simulation.trace import read_trace
from oasr_backend.simulation.workload import LENGTHS

N = TypeVar("N", int, float)

NUM_REQUESTS, NUM_SEEDS = 4000, 5
"""The size of the runs for which the experiments' verdicts are stated."""

BURST_REQUESTS = 500
MAX_REQUESTS, MAX_RATE = 1_000_000, 100.0
SIZES = ("requests", "seeds", "processes")

OWN_FLAGS = {
    "max_batch_size": "--cap",
    "preferred_batch_size": "--preferred-batch-size",
    "schedule_policy": "--policies",
}
"""Options of the engine that are no `--option`."""

WITHOUT_EFFECT = (
    *("adaptive_kappa", "streaming_cohort_admit", "max_streams", "measure_costs_s"),
    *(
        "cost_table_path",
        "max_waiting",
        "max_waiting_mb",
        "max_audio_s",
        "nvtx",
        "max_buffered_s",
        "max_idle_s",
    ),
)
"""Options of the engine that the simulation has nothing for: streams, outputs, refusals."""


def parse(arguments: Sequence[str], description: str | None) -> argparse.Namespace:
    """Read the command line; a flag that was not given is None. Leaves the process where it cannot be read."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_flags(parser)
    for text in arguments:
        if re.match(r"-[\d.]", text):
            parser.error(f"{text} begins with a minus: no value here is below 0")
    return parser.parse_args(arguments)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--experiment", nargs="+", choices=[*EXPERIMENTS, "all"], help="measure what is claimed")
    add("--workload", choices=WORKLOADS, help="what arrives; steady by default")
    add("--trace", type=Path, help="a CSV file of arrivals: time_s,duration_s[,tenant]")
    add("--lengths", nargs="+", choices=LENGTHS, help="of what arrives; each by default")
    add(
        "--service",
        nargs="+",
        help="cpu, gpu, linear, ms as 10+2.1 (a batch + a padded second of audio), or the file of a server's "
        "cost_table_path",
    )
    add(
        "--rates",
        nargs="+",
        type=above_0(float, MAX_RATE),
        help="times what fcfs works off; 0.8 1.0 1.2 by default",
    )
    add(
        "--of-best",
        action="store_const",
        const=True,
        help="rates count in what fcfs works off at its best batch size, not at --cap",
    )
    add("--policies", nargs="+", help="each by default")
    add("--cap", type=above_0(int), help="max_batch_size; 16 by default")
    add(
        "--preferred-batch-size",
        nargs="+",
        type=above_0(int),
        help="the sizes in which batches run; any by default",
    )
    add(
        "--fixed-window-frames",
        help="frames that every row costs (3000 for Whisper); longer clips are cut to it",
    )
    add("--max-wait-time", help="the starvation bound in seconds; none by default")
    add(
        "--option",
        action="append",
        type=_key_value,
        metavar="KEY=VALUE",
        help="another option of the scheduler, as in config.pbtxt; may be repeated",
    )
    add("--tenants", type=tenant_shares, help="shares of the arrivals: loud=8,quiet=1")
    add(
        "--tenant-fairness",
        action="store_const",
        const="true",
        help="serve the least served tenant first",
    )
    add(
        "--requests",
        type=above_0(int, MAX_REQUESTS),
        help=f"{NUM_REQUESTS} by default, {BURST_REQUESTS} a burst",
    )
    add("--seeds", type=above_0(int, 1000), help=f"runs to average; {NUM_SEEDS} by default")
    add("--processes", type=above_0(int, 256), help="how many runs at a time; 2 by default")
    add("--csv", type=Path, help="write the figures of every seed to this file")
    add("--plots", type=Path, help="draw latency against load into this folder (needs matplotlib)")


def above_0(number: type[N], most: float = math.inf) -> Callable[[str], N]:
    """Return a reader of finite numbers above 0 and up to `most`, whose name argparse's errors show."""

    def read(text: str) -> N:
        value = number(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0 and below inf")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is above {most:g}, the limit")
        return value

    read.__name__ = number.__name__
    return read


def tenant_shares(text: str) -> tuple[tuple[str, float], ...]:
    """Read "loud=8,quiet=1"."""
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        shares = tuple((name.strip(), float(share)) for name, share in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list as loud=8,quiet=1") from None
    names = [name for name, _ in shares]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a tenant twice, or with an empty name")
    if not all(0 < share < math.inf for _, share in shares):
        raise argparse.ArgumentTypeError(
            f"{text!r} holds a share that is not above 0 and below inf"
        )
    return shares


def _key_value(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not as cost_exponent=0.5")
    return key.strip(), value


def check_together(flags: argparse.Namespace) -> None:
    """Raise ConfigError for flags of which one leaves another without effect."""
    given = [name for name, value in vars(flags).items() if value is not None]
    workload = flags.workload or "steady"
    if flags.experiment:
        _refuse(given, "--experiment", set(given) - {"experiment", *SIZES})
    if flags.trace:
        unused = {"workload", "lengths", "rates", "of_best", "requests", "seeds", "tenants"}
        _refuse(given, "--trace", unused, "which brings its own")
    if workload not in WITH_RATES:
        _refuse(given, f"--workload {workload}", {"rates", "of_best"}, "whose loads are fixed")
    if workload not in WITH_LENGTHS:
        _refuse(given, f"--workload {workload}", {"lengths"}, "which brings its own")
    if flags.plots and (flags.trace or workload not in WITH_RATES):
        what = "a trace" if flags.trace else f"--workload {workload}"
        raise ConfigError(
            f"--plots draws latency against load, and {what} has one load only: leave --plots out (--csv has the "
            "figures)"
        )
    _check_fairness(flags)


def _refuse(given: Sequence[str], owner: str, unused: set[str], why: str = "") -> None:
    names = [f"--{name.replace('_', '-')}" for name in given if name in unused]
    if names:
        reason = f", {why}" if why else ""
        raise ConfigError(
            f"{' and '.join(names)} would have no effect with {owner}{reason}: leave one of them out"
        )


def _check_fairness(flags: argparse.Namespace) -> None:
    options = engine_options(flags)
    if options.tenant_fairness and not (flags.tenants or flags.trace):
        raise ConfigError(
            "tenant_fairness needs tenants: add --tenants, or a --trace that has some"
        )
    if options.tenant_weights and not options.tenant_fairness:
        raise ConfigError("tenant_weights would have no effect: add --tenant-fairness")


def engine_options(flags: argparse.Namespace) -> EngineConfig:
    """Return the scheduler's options, but for policy and cap; raises ConfigError as a server does."""
    values: dict[str, str] = {}
    named = ("max_wait_time", "tenant_fairness", "fixed_window_frames")
    own = [(name, value) for name in named if (value := getattr(flags, name)) is not None]
    for key, value in [*own, *(flags.option or ())]:
        _check_option(key, value)
        if key in values:
            raise ConfigError(f"{key} is given twice, as {values[key]!r} and {value!r}: give one")
        values[key] = value
    values.setdefault("max_wait_time", str(NO_WAIT_BOUND.max_wait_time))
    sizes = flags.preferred_batch_size
    cap = cap_of(flags)
    return read_options(
        EngineConfig, values, max_batch_size=cap, preferred_batch_size=sizes and tuple(sizes)
    )


def _check_option(key: str, value: str) -> None:
    if key in OWN_FLAGS:
        raise ConfigError(f"--option {key}={value}: it has a flag of its own: use {OWN_FLAGS[key]}")
    known = {field.name for field in fields(EngineConfig)} - {*OWN_FLAGS, *WITHOUT_EFFECT}
    if key not in known:
        raise ConfigError(
            f"--option {key}={value}: the simulation has nothing for it; it must be one of "
            f"{', '.join(sorted(known))}: correct or remove it"
        )
    if (key, value) == ("job_size", "vad"):
        raise ConfigError(
            "--option job_size=vad: nobody knows of a simulated clip how much of it is speech: choose frames or tokens"
        )


def cap_of(flags: argparse.Namespace) -> int:
    """Return the rows of a batch at most."""
    return int(flags.cap or 16)


def lab_of(flags: argparse.Namespace, shows_progress: bool) -> Lab:
    """Return the runs' size: a trace is the same for every seed."""
    default = BURST_REQUESTS if flags.workload == "burst" else NUM_REQUESTS
    return Lab(
        flags.requests or default,
        1 if flags.trace else flags.seeds or NUM_SEEDS,
        flags.processes or min(2, os.cpu_count() or 1),
        shows_progress,
    )


def plan_of(flags: argparse.Namespace) -> Plan:
    """Read the files that are named, and return what is to be compared; raises ConfigError."""
    trace = read_trace(flags.trace) if flags.trace else ()
    options = engine_options(flags)
    if trace and options.tenant_fairness and not any(arrival.tenant for arrival in trace):
        raise ConfigError(
            f"tenant_fairness needs tenants, and {flags.trace} names none: add a column tenant, or leave it out"
        )
    return Plan(
        workload=f"trace {flags.trace.name}" if flags.trace else flags.workload or "steady",
        lengths=flags.lengths or list(LENGTHS),
        services={name: read_service(name) for name in flags.service or SERVICES},
        rates=flags.rates or (0.8, 1.0, 1.2),
        policies=flags.policies or POLICIES,
        cap=cap_of(flags),
        options=options,
        tenants=flags.tenants or (),
        trace=trace,
        of_best=bool(flags.of_best),
    )


def check_targets(flags: argparse.Namespace) -> None:
    """Raise ConfigError where a file that is asked for cannot be written; makes the folder of plots."""
    try:
        if flags.csv:
            is_new = not flags.csv.exists()
            flags.csv.open("a", encoding="utf-8").close()
            if is_new:
                flags.csv.unlink()
        if flags.plots:
            flags.plots.mkdir(parents=True, exist_ok=True)
            probe = flags.plots / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be written ({error.strerror}): make its folder and see that it may be written, "
            "or name another"
        ) from None
