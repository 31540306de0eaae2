"""Loads and lengths that change on the way: "adaptive" against every fixed policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from oasr_backend.simulation.cases import Case, Lab, averaged
from oasr_backend.simulation.experiments.claims import Claim, at_most, seconds
from oasr_backend.simulation.figures import Figures
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.workload import Workload, length_drift, load_drift, steady

FIXED = ("fcfs", "bucket", "window", "sjf", "hrrn", "cost")
MACHINES = ("cpu", "gpu")
WAIT_BOUNDS = (inf, 0.2)
LIMIT = 1.10

Means = Mapping[str, Figures]
Cell = tuple[str, str, float]


def drift(lab: Lab) -> Iterator[Claim | str]:
    """Yield whether "adaptive" is near the best fixed policy in p50 and in p90, each taken by itself."""
    cases = {
        (cell, policy): case
        for machine in MACHINES
        for cell, case in _cells(lab, machine).items()
        for policy in (*FIXED, "adaptive")
        for case in [replace(case, policy=policy)]
    }
    figures = lab.seeds_of(cases)
    means = averaged(figures)
    cells = list(dict.fromkeys(cell for cell, _ in cases))
    yield (
        f"{lab.num_requests} requests, cap 16, {lab.num_seeds} seeds. p50 / p90 / p99 in seconds; adaptive in parts of "
        "the best fixed policy of each percentile:"
    )
    for cell in cells:
        yield _line(cell, {p: means[cell, p] for p in (*FIXED, "adaptive")})
    for name in ("p50_s", "p90_s"):
        values = {
            _name(c): _ratio({p: means[c, p] for p in (*FIXED, "adaptive")}, name) for c in cells
        }
        yield at_most(f"adaptive's {name[:3]} / the best fixed policy's is", values, LIMIT)
    fewest = {_name(c): min(f.num_switches for f in figures[c, "adaptive"]) for c in cells}
    least = min(fewest, key=lambda key: fewest[key])
    yield Claim(
        "adaptive switches in every seed",
        fewest[least] > 0,
        f"{fewest[least]:g} times at least ({least})",
    )


def _cells(lab: Lab, machine: str) -> dict[Cell, Case]:
    case = Case("fcfs", steady(lab.num_requests, 1.0, "librispeech"), SERVICES[machine])
    limit = lab.saturations(case, [case.cap])[case.cap]
    workloads: dict[str, Workload] = {
        f"load 0.3, {overload:.1f}, 0.3 x": load_drift(
            lab.num_requests, 0.3 * limit, overload * limit, "librispeech"
        )
        for overload in (1.5, 2.0)
    }
    workloads["LibriSpeech-like, then uniform, 1.0 x"] = length_drift(lab.num_requests, limit)
    return {
        (machine, name, wait): replace(case, workload=workload, max_wait_time=wait)
        for name, workload in workloads.items()
        for wait in WAIT_BOUNDS
    }


def _ratio(means: Means, name: str) -> float:
    best: float = min(getattr(means[policy], name) for policy in FIXED)
    return float(getattr(means["adaptive"], name)) / best


def _line(cell: Cell, means: Means) -> str:
    parts = []
    for name in ("p50_s", "p90_s", "p99_s"):
        best = min(FIXED, key=lambda policy: getattr(means[policy], name))
        parts.append(f"{_ratio(means, name):.2f} ({best})")
    ours = means["adaptive"]
    table = "; ".join(f"{policy} {seconds(means[policy])}" for policy in ("fcfs", "sjf", "cost"))
    measured = f"adaptive {seconds(ours)} = {' / '.join(parts)}, {ours.num_switches:.1f} switches"
    return f"  {_name(cell)}\n    {measured}; {table}"


def _name(cell: Cell) -> str:
    machine, workload, wait = cell
    return f"{machine}, {workload}, " + ("no wait bound" if wait == inf else f"bound {wait:g} s")
