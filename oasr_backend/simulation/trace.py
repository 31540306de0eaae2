"""Arrivals read from a CSV file: what a real server was sent, to be served again in the simulation."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.request import FRAMES_PER_SECOND
from oasr_backend.simulation.workload import Arrival

COLUMNS = ("time_s", "duration_s")
HEADERS = ({*COLUMNS}, {*COLUMNS, "tenant"})
MAX_DURATION_S = 7200.0
"""The longest audio that the server takes by default."""


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read `time_s,duration_s[,tenant]`, with that line as its header; the order of the lines is free.

    The earliest arrival becomes time 0. Raises ConfigError naming the line, the value, what is allowed and the remedy.
    """
    try:
        # Spreadsheets begin a file with a byte order mark.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, skipinitialspace=True)
            names = _read_header(path, next(reader, []))
            arrivals = [
                _read_line(f"{path}:{reader.line_num}", names, cells) for cells in reader if cells
            ]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): give the path of a CSV file"
        ) from None
    except csv.Error as error:
        raise ConfigError(
            f"{path}:{reader.line_num}: this is no CSV ({error}): correct it"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8: give a CSV file") from None
    if not arrivals:
        raise ConfigError(f"{path} holds 0 arrivals; it must hold at least 1: add a line")
    start_s = min(a.time_s for a in arrivals)
    arrivals = [Arrival(a.time_s - start_s, a.num_frames, a.tenant) for a in arrivals]
    return tuple(sorted(arrivals, key=lambda a: a.time_s))


def _read_header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if set(names) not in HEADERS or len(set(names)) < len(names):
        raise ConfigError(
            f"{path}:1: the header is {','.join(names)!r}; it must hold time_s and duration_s, may hold tenant, and "
            "nothing else: make the first line time_s,duration_s,tenant and drop other columns"
        )
    return names


def _read_line(where: str, names: list[str], cells: list[str]) -> Arrival:
    if len(cells) != len(names):
        raise ConfigError(
            f"{where}: it holds {len(cells)} columns; it must hold {len(names)} ({','.join(names)}): correct the line"
        )
    row = dict(zip(names, map(str.strip, cells), strict=True))
    time_s = _number(where, row, "time_s", 0.0, math.inf)
    duration_s = _number(where, row, "duration_s", 0.01, MAX_DURATION_S)
    return Arrival(time_s, round(duration_s * FRAMES_PER_SECOND), row.get("tenant") or None)


def _number(where: str, row: dict[str, str], name: str, least: float, most: float) -> float:
    text = row[name]
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
