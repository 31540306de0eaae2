"""Arrivals read from a CSV file: what a real server was sent, to be served again in the simulation."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.request import FRAMES_PER_SECOND
from oasr_backend.simulation.workload import Arrival

COLUMNS = ("time_s", "duration_s")
MAX_DURATION_S = 7200.0
"""The longest audio that the server takes by default."""


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read `time_s,duration_s[,tenant]`, with that line as its header; the order of the lines is free.

    The earliest arrival becomes time 0. Raises ConfigError naming the line, the value, what is allowed and the remedy.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            _check_header(path, reader.fieldnames or ())
            arrivals = [_read_line(f"{path}:{reader.line_num}", row) for row in reader]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): give the path of a CSV file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8: give a CSV file") from None
    if not arrivals:
        raise ConfigError(f"{path} holds 0 arrivals; it must hold at least 1: add a line")
    start_s = min(a.time_s for a in arrivals)
    arrivals = [Arrival(a.time_s - start_s, a.num_frames, a.tenant) for a in arrivals]
    return tuple(sorted(arrivals, key=lambda a: a.time_s))


def _check_header(path: Path, names: object) -> None:
    if not isinstance(names, list) or not set(COLUMNS) <= set(names):
        found = ",".join(names) if isinstance(names, list) else ""
        raise ConfigError(
            f"{path}:1: the header is {found!r}; it must hold time_s and duration_s, and may hold tenant: "
            "make the first line time_s,duration_s,tenant"
        )


def _read_line(where: str, row: dict[str, str | None]) -> Arrival:
    time_s = _number(where, row, "time_s", 0.0, math.inf)
    duration_s = _number(where, row, "duration_s", 0.01, MAX_DURATION_S)
    return Arrival(time_s, round(duration_s * FRAMES_PER_SECOND), row.get("tenant") or None)


def _number(where: str, row: dict[str, str | None], name: str, least: float, most: float) -> float:
    text = row[name] or ""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(
            f"{where}: {name} is {text!r}; it must be a number of seconds: correct the line"
        ) from None
    if not least <= value <= most or math.isinf(value):
        limit = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise ConfigError(f"{where}: {name} is {text}; it must be {limit} s: correct the line")
    return value
