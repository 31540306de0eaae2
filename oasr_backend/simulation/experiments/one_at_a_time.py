"""Duration-aware orders on a machine that serves one request at a time, beside the published measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from oasr_backend.simulation.cases import Case, Lab
from oasr_backend.simulation.experiments.claims import PERCENTILES, Claim, at_most, below, change
from oasr_backend.simulation.figures import Figures
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.workload import Mode, Workload, steady

NUM_REQUESTS = 500
"""Completed requests a rate, as published: under overload the queue and all ratios grow with the number."""

MANY_REQUESTS = 4000

MIN_SEEDS = 20
"""One seed of 500 requests says little."""

LOADED = (1.0, 1.28, 1.39)
LOADS = (0.55, 0.95, *LOADED)
"""The published 10, 17, 23 and 25 requests/s against its saturation at about 18, and saturation itself."""

PUBLISHED = {
    ("librispeech", 0.55): "sjf p50 -6 %, p90 -8 %; hrrn -8 %, -8 %",
    ("librispeech", 0.95): "sjf p50 -23 %, p90 +5 %; hrrn -10 %, +9 %",
    ("librispeech", 1.28): "sjf p50 -66 %, p90 +138 %; hrrn -23 %, +32 %",
    ("librispeech", 1.39): "sjf p50 -73 % at best, p90 +97 %; hrrn p90 +24 %",
    ("uniform", 1.39): "sjf p50 -67 %, p90 +29 %; hrrn p90 +14 %",
    ("librispeech", inf): "sjf p50 -4 %; hrrn -11 %",
}

REASONS = """\
Why they differ: the published server batches continuously. A request there joins the running ones and takes part in
every step, so that order decides only who waits to be admitted; here it decides everything, and gains are larger.
A p90 rises once more than a tenth of the requests is passed over for as long as the load lasts. The longest tenth of
LibriSpeech-like lengths is more than a quarter of the audio: below about 1.35 x sjf's cost is in the p99, above it in
the p90 too. In a burst all have waited equally, and the highest response ratio is the shortest job."""

POLICIES = ("fcfs", "sjf", "hrrn")
Key = tuple[str, float, str]


def one_at_a_time(lab: Lab) -> Iterator[Claim | str]:
    """Yield the orders that must hold at and above saturation, and every figure beside the published one."""
    lab = replace(lab, num_seeds=max(MIN_SEEDS, lab.num_seeds))
    yield (
        f"{NUM_REQUESTS} requests, one at a time on the cpu service, wait bound off, {lab.num_seeds} seeds. "
        "Changes against fcfs:"
    )
    means = lab.means_of(_cases(lab, NUM_REQUESTS, (*LOADS, inf)))
    for lengths, load in dict.fromkeys((key[0], key[1]) for key in means):
        yield _line(means, lengths, load)
    yield f"The same with {MANY_REQUESTS} requests:"
    many = replace(lab, num_seeds=MIN_SEEDS // 4).means_of(_cases(lab, MANY_REQUESTS, (1.28, 1.39)))
    for lengths, load in dict.fromkeys((key[0], key[1]) for key in many):
        yield _line(many, lengths, load)
    yield REASONS
    yield from _claims(means)


def _cases(lab: Lab, num_requests: int, loads: tuple[float, ...]) -> dict[Key, Case]:
    cases: dict[Key, Case] = {}
    for lengths in ("librispeech", "uniform"):
        case = Case("fcfs", steady(4000, 1.0, lengths), SERVICES["cpu"], cap=1)
        saturation = lab.saturations(case, [1])[1]
        for load in loads:
            workload = Workload((Mode(num_requests, load * saturation, lengths),))
            for policy in POLICIES:
                cases[lengths, load, policy] = replace(case, policy=policy, workload=workload)
    return cases


def _line(means: dict[Key, Figures], lengths: str, load: float) -> str:
    fcfs, sjf, hrrn = (means[lengths, load, policy] for policy in POLICIES)
    ours = "; ".join(
        f"{policy} {_changes(f, fcfs)}" for policy, f in (("sjf", sjf), ("hrrn", hrrn))
    )
    published = PUBLISHED.get((lengths, load))
    return f"  {lengths:<12}{_name(load):<8}{ours}" + (
        f"   (published: {published})" if published else ""
    )


def _name(load: float) -> str:
    return "burst" if load == inf else f"{load:.2f} x"


def _changes(ours: Figures, theirs: Figures) -> str:
    return ", ".join(
        f"{name[:3]} {change(getattr(ours, name), getattr(theirs, name))}" for name in PERCENTILES
    )


def _claims(means: dict[Key, Figures]) -> Iterator[Claim]:
    def compared(ours: str, theirs: str, name: str, loads: tuple[float, ...]) -> dict[str, float]:
        return {
            f"{lengths}, {_name(load)}": getattr(means[lengths, load, ours], name)
            / getattr(means[lengths, load, theirs], name)
            for lengths in ("librispeech", "uniform")
            for load in loads
        }

    yield below(
        "from saturation up, sjf's p50 / hrrn's is", compared("sjf", "hrrn", "p50_s", LOADED)
    )
    yield below(
        "from saturation up, hrrn's p50 / fcfs' is", compared("hrrn", "fcfs", "p50_s", LOADED)
    )
    for policy in ("sjf", "hrrn"):
        values = compared(policy, "fcfs", "p50_s", (inf,))
        yield below(f"in a burst, {policy}'s p50 / fcfs' is", values)
        off = {
            name: abs(value - 1)
            for name, value in compared(policy, "fcfs", "throughput", (*LOADED, inf)).items()
        }
        yield at_most(f"{policy}'s throughput differs from fcfs' by a part of", off, 0.01)
    overload = tuple(load for load in LOADED if load > 1)
    yield below(
        "above saturation, fcfs' p99 / hrrn's is", compared("fcfs", "hrrn", "p99_s", overload)
    )
    yield below(
        "above saturation, hrrn's p99 / sjf's is", compared("hrrn", "sjf", "p99_s", overload)
    )
