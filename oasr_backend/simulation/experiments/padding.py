"""How much padding "window" saves of what arrival order computes, and how much it delays for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from statistics import median

from oasr_backend.simulation.cases import Case, Lab
from oasr_backend.simulation.experiments.claims import Claim, between
from oasr_backend.simulation.service import SERVICES
from oasr_backend.simulation.workload import Mode, Workload

NUM_REQUESTS, NUM_SEEDS, CAP = 2048, 40, 32
MAX_MEDIAN_DELAY, MAX_DELAY = 8, 10


def padding(lab: Lab) -> Iterator[Claim | str]:
    """Yield the claims of the scheduler's own document; its sizes are fixed, whatever the lab's."""
    yield f"{NUM_REQUESTS} LJSpeech-like lengths wait, cap {CAP}, {NUM_SEEDS} seeds (the document: 1.48, 1.11 and 8)"
    case = Case("fcfs", Workload((Mode(NUM_REQUESTS, inf, "ljspeech"),)), SERVICES["cpu"], CAP)
    cases = {name: replace(case, policy=name) for name in ("fcfs", "window", "cost")}
    seeds = replace(lab, num_seeds=NUM_SEEDS).seeds_of(cases)
    ratios = {
        name: {str(seed): f.padding for seed, f in enumerate(figures)}
        for name, figures in seeds.items()
    }
    yield between("fcfs computes for each frame of audio", ratios["fcfs"], 1.45, 1.58)
    yield between("window computes for each frame of audio", ratios["window"], 1.08, 1.14)
    delays = [f.deepest_delay for f in seeds["window"]]
    middle, most = median(delays), max(delays)
    yield Claim(
        f"window delays nobody by more than {MAX_MEDIAN_DELAY} batches in the median seed, by {MAX_DELAY} in any",
        middle <= MAX_MEDIAN_DELAY and most <= MAX_DELAY,
        f"{middle:g} and {most:g}; {sum(d > MAX_MEDIAN_DELAY for d in delays)} of {NUM_SEEDS} seeds above "
        f"{MAX_MEDIAN_DELAY}",
    )
