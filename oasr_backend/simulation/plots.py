"""Latency against load by policy, as pictures. It needs matplotlib, which serving does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oasr_backend.errors import ConfigError
from oasr_backend.simulation.sweep import BEST_FIFO, Row

PERCENTILES = {"p50_s": "p50", "p90_s": "p90", "p99_s": "p99"}
INSTALL = ".venv/bin/pip install --no-deps --require-hashes -r requirements/plot.txt"


def load_pyplot() -> Any:
    """Return matplotlib's pyplot without a screen, or raise ConfigError naming the command that installs it."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(f"plots need matplotlib, which is not installed: run {INSTALL}") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def plot_latencies(folder: Path, rows: Sequence[Row]) -> Path:
    """Draw the rows of one service and lengths, one panel a percentile; returns the file that was written."""
    pyplot = load_pyplot()
    figure, panels = pyplot.subplots(1, len(PERCENTILES), figsize=(11, 3.6), sharex=True)
    policies = list(dict.fromkeys(row.policy for row in rows))
    for panel, (name, title) in zip(panels, PERCENTILES.items(), strict=True):
        for policy in policies:
            own = [row for row in rows if row.policy == policy and row.rate is not None]
            panel.plot(
                [row.rate for row in own],
                [getattr(row.mean, name) for row in own],
                marker="o",
                markersize=3,
                linewidth=1.2,
                # It runs on top of the policy that it has chosen.
                linestyle="--" if policy == "adaptive" else "-",
                label=policy,
            )
        panel.set(title=title, yscale="log", xlabel="load / what fcfs works off")
        panel.grid(visible=True, which="major", alpha=0.3)
    panels[0].set_ylabel("latency, s")
    first = rows[0]
    figure.suptitle(f"{first.lengths} lengths, {first.service} service, {_caps(rows)}")
    figure.legend(policies, loc="lower center", ncols=len(policies), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"latency-{first.lengths}-{_file_part(first.service)}.png"
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return path


def _caps(rows: Sequence[Row]) -> str:
    best = next((row.cap for row in rows if row.policy == BEST_FIFO), None)
    return f"batches of up to {rows[0].cap}" + (f" (fcfs' best: {best})" if best else "")


def _file_part(service: str) -> str:
    return Path(service).stem if "/" in service else service.replace("+", "-")
