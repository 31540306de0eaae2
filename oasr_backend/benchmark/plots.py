"""Runs as pictures: latency against load by system, and service time against duration. It needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oasr_backend.benchmark.figures import Figures, median_of, spread_of
from oasr_backend.benchmark.results import Results
from oasr_backend.simulation.plots import load_pyplot

PANELS = {"p50_s": "p50", "p90_s": "p90", "p99_s": "p99"}


def plot_latencies(
    path: Path,
    results: Results[Figures],
    systems: Sequence[str],
    lengths: str,
    kind: str,
    loads: Sequence[float],
) -> None:
    """Draw medians over the repeats, with bars from the least to the greatest."""
    pyplot = load_pyplot()
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 3.6), sharex=True)
    for panel, (name, title) in zip(panels, PANELS.items(), strict=True):
        for system in systems:
            cases = [(load, results.of(system, lengths, kind, load)) for load in loads]
            cases = [(load, runs) for load, runs in cases if runs]
            middles = [getattr(median_of(runs), name) for _, runs in cases]
            ends = [spread_of(runs, name) for _, runs in cases]
            below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
            above = [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]
            at = [load for load, _ in cases]
            panel.errorbar(at, middles, (below, above), marker="o", markersize=3, label=system)
        panel.set(title=title, yscale="log", xlabel="load / what the reference works off")
        panel.grid(visible=True, which="major", alpha=0.3)
    panels[0].set_ylabel("latency, s")
    figure.legend(systems, loc="lower center", ncols=len(systems), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def plot_service_times(
    path: Path, durations_s: Sequence[float], service_s: Mapping[str, Sequence[float]]
) -> None:
    """Draw each utterance's service time alone against its duration, a colour a system."""
    pyplot = load_pyplot()
    figure, panel = pyplot.subplots(figsize=(6, 4))
    for system, times_s in service_s.items():
        panel.scatter(durations_s, times_s, s=8, label=system)
    panel.set(xlabel="duration, s", ylabel="alone, s")
    panel.grid(visible=True, alpha=0.3)
    panel.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
