"""Rows as a table to read, and as CSV to compute with."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from oasr_backend.simulation.figures import NUMBERS
from oasr_backend.simulation.sweep import Row

HEADINGS = {
    "p25_s": "p25",
    "p50_s": "p50",
    "p90_s": "p90",
    "p99_s": "p99",
    "max_s": "max",
    "wait_p50_s": "wait p50",
    "padding": "padding",
    "throughput": "req/s",
    "deepest_delay": "delay",
    "jain": "Jain",
    "num_switches": "switches",
}

KEYS = ("lengths", "service", "saturation", "rate", "policy", "cap", "seed")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: means over the seeds, latencies in seconds, the delay in batches."""
    yield f"{'rate':>5} {'policy':<15}{'cap':>4}" + "".join(f"{HEADINGS[n]:>9}" for n in NUMBERS)
    for row in rows:
        rate = "-" if row.rate is None else f"{row.rate:.2f}"
        values = "".join(f"{getattr(row.mean, name):>9.{_decimals(name)}f}" for name in NUMBERS)
        yield f"{rate:>5} {row.policy:<15}{row.cap:>4}{values}"
    yield from _tenant_lines(rows)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write one line for every row and seed."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*KEYS, *NUMBERS))
        for row in rows:
            for seed, figures in enumerate(row.seeds):
                keys = (row.lengths, row.service, row.saturation, row.rate, row.policy, row.cap)
                writer.writerow((*keys, seed, *(getattr(figures, name) for name in NUMBERS)))


def _decimals(name: str) -> int:
    return {"throughput": 1, "deepest_delay": 1, "num_switches": 1}.get(name, 3)


def _tenant_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what each tenant got, where there is more than one."""
    if not rows or len(rows[0].mean.tenants) < 2:
        return
    yield (
        f"{'rate':>5} {'policy':<15}{'tenant':<12}{'arrived':>9}{'served':>9}{'p50':>9}{'p90':>9}"
        "   (shares of all audio, and of the first half that was served)"
    )
    for row in rows:
        rate = "-" if row.rate is None else f"{row.rate:.2f}"
        for tenant in row.mean.tenants:
            yield (
                f"{rate:>5} {row.policy:<15}{tenant.tenant:<12}{tenant.arrived_share:>9.2f}"
                f"{tenant.served_share:>9.2f}{tenant.p50_s:>9.3f}{tenant.p90_s:>9.3f}"
            )
