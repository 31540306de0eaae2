"""Runs as tables to read: medians over the repeats, their spread, and the ratios to one of the systems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from statistics import median

from oasr_backend.benchmark.figures import Figures, median_of, ratio_of, spread_of
from oasr_backend.benchmark.results import Results
from oasr_backend.benchmark.streams import StreamFigures

STREAM_NAMES = tuple(field.name for field in fields(StreamFigures))
STREAM_LATENCIES = ("p50_s", "p90_s", "p99_s", "max_s", "first_p50_s", "final_p50_s", "final_p99_s")
LATENCIES = ("p25_s", "p50_s", "p90_s", "p99_s", "max_s", "wait_s")


def latency_table(
    results: Results[Figures],
    systems: Sequence[str],
    lengths: str,
    kind: str,
    loads: Sequence[float],
    peer: str,
) -> Iterator[str]:
    """Yield the lines of a table: latencies in milliseconds, and in times those of `peer`."""
    yield (
        f"{'load':>5} {'system':<22}{'p25':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}{'wait':>9}{'req/s':>8}"
        f"{'late p99':>10}{'errors':>8}{'differ':>8}   p50, p90, p99 / {peer}   p99 from-to"
    )
    for load in loads:
        for system in systems:
            runs = results.of(system, lengths, kind, load)
            if runs:
                yield _line(load, system, runs, results.of(peer, lengths, kind, load))


def throughput_table(
    results: Results[Figures], systems: Sequence[str], lengths: str, peer: str
) -> Iterator[str]:
    """Yield the lines of a table: what each system works off of a backlog, and its latencies then in milliseconds."""
    wide = max(14, len(peer) + 4)
    yield (
        f"{'system':<22}{'req/s':>8}{'from':>8}{'to':>8}{'/ ' + peer:>{wide}}{'p50':>8}{'p90':>8}{'p99':>8}"
        f"{'errors':>8}{'differ':>8}"
    )
    of_peer = results.of(peer, lengths, "burst", 0.0)
    for system in systems:
        runs = results.of(system, lengths, "burst", 0.0)
        if not runs:
            continue
        figures, (least, most) = median_of(runs), spread_of(runs, "throughput")
        ratio = f"{ratio_of(runs, of_peer, 'throughput'):.2f}" if of_peer else "-"
        yield (
            f"{system:<22}{figures.throughput:>8.1f}{least:>8.1f}{most:>8.1f}{ratio:>{wide}}"
            f"{figures.p50_s * 1e3:>8.0f}{figures.p90_s * 1e3:>8.0f}{figures.p99_s * 1e3:>8.0f}"
            f"{figures.errors:>8.0f}{figures.differing:>8.0f}"
        )


def ratio_table(results: Results[Figures], systems: Sequence[str], lengths: str) -> Iterator[str]:
    """Yield the lines of a table: the throughput of each system in times that of each other one."""
    runs = {system: results.of(system, lengths, "burst", 0.0) for system in systems}
    measured = [system for system in systems if runs[system]]
    yield f"{'req/s / those of':<22}" + "".join(f"{system:>20}" for system in measured)
    for system in measured:
        ratios = (ratio_of(runs[system], runs[peer], "throughput") for peer in measured)
        yield f"{system:<22}" + "".join(f"{ratio:>20.2f}" for ratio in ratios)


def _line(load: float, system: str, runs: Sequence[Figures], of_peer: Sequence[Figures]) -> str:
    figures = median_of(runs)
    latencies = "".join(_milliseconds(getattr(figures, name)) for name in LATENCIES)
    ratios = ""
    if of_peer:
        ratios = ", ".join(
            f"{ratio_of(runs, of_peer, name):.2f}" for name in ("p50_s", "p90_s", "p99_s")
        )
    least, most = spread_of(runs, "p99_s")
    return (
        f"{load:>5.2f} {system:<22}{latencies}{figures.throughput:>8.1f}{figures.lag_p99_s * 1e3:>10.1f}"
        f"{figures.errors:>8.0f}{figures.differing:>8.0f}   {ratios:<26} {least * 1e3:.0f}-{most * 1e3:.0f}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{'-':>9}" if math.isnan(seconds) else f"{seconds * 1e3:>9.0f}"


def stream_table(
    results: Results[StreamFigures], systems: Sequence[str], numbers: Sequence[float]
) -> Iterator[str]:
    """Yield the lines of a table of streams, in milliseconds: medians over the repeats."""
    yield (
        f"{'streams':>7} {'system':<18}{'chunks':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}{'first':>8}"
        f"{'final':>8}{'its p99':>8}{'late p99':>10}{'cores':>7}{'own':>6}{'errors':>8}{'differ':>8}   p99 from-to"
    )
    for number in numbers:
        for system in systems:
            runs = results.of(system, "", "streams", number)
            if runs:
                yield _stream_line(number, system, runs)


def _stream_line(number: float, system: str, runs: Sequence[StreamFigures]) -> str:
    middle = {name: median(getattr(run, name) for run in runs) for name in STREAM_NAMES}
    latencies = "".join(f"{middle[name] * 1e3:>8.0f}" for name in STREAM_LATENCIES)
    wrong = "".join(
        f"{sum(getattr(run, name) for run in runs):>8.0f}" for name in ("errors", "differing")
    )
    p99s = [run.p99_s * 1e3 for run in runs]
    return (
        f"{number:>7.0f} {system:<18}{middle['chunks']:>8.0f}{latencies}{middle['lag_p99_s'] * 1e3:>10.1f}"
        f"{middle['busy_cores']:>7.2f}{middle['own_cores']:>6.2f}{wrong}"
        f"   {min(p99s):.0f}-{max(p99s):.0f}"
    )
