"""When requests are due, and which utterance each of them is: drawn from a seed, or read from a file."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from oasr_backend.errors import ConfigError

MAX_TIME_S = 86400.0
"""A trace lasts a day at most."""

KINDS = ("poisson", "constant", "burst")


@dataclass(frozen=True, slots=True)
class Due:
    """One request: the second of the run at which it is sent, and the number of its utterance."""

    time_s: float
    utterance: int


def draw(kind: str, num_requests: int, rate: float, num_utterances: int, seed: int) -> list[Due]:
    """Return requests in order of time: `rate` a second in the mean, independent of each other (poisson), evenly
    spaced (constant), or all at once (burst)."""
    rng = random.Random(f"arrivals {seed}")
    times_s = {
        "poisson": lambda: rng.expovariate(rate),
        "constant": lambda: 1 / rate,
        "burst": lambda: 0.0,
    }
    time_s, arrivals = 0.0, []
    for _ in range(num_requests):
        time_s += times_s[kind]()
        arrivals.append(Due(time_s, rng.randrange(num_utterances)))
    return arrivals


def read_trace(path: Path) -> tuple[list[Due], list[Path]]:
    """Read `time_s,file` lines, under that header; return the requests, and the files whose numbers they hold.

    Files are relative to the trace's folder. Raises ConfigError.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file)
            if sorted(reader.fieldnames or ()) != ["file", "time_s"]:
                raise ConfigError(f"{path}:1: the header must be time_s,file: correct it")
            rows = [_request(path, reader.line_num, row) for row in reader]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"{path} is no CSV file in UTF-8 ({error}): correct it") from error
    if not rows:
        raise ConfigError(f"{path} holds no arrivals: add a line")
    numbers = dict(zip(dict.fromkeys(name for _, name in rows), count(), strict=False))
    for name in numbers:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path} names {name!r}, which is no file: correct the path")
    arrivals = sorted((Due(time_s, numbers[name]) for time_s, name in rows), key=_time)
    return arrivals, [path.parent / name for name in numbers]


def _time(due: Due) -> float:
    return due.time_s


def _request(path: Path, line: int, row: Mapping[str | None, Any]) -> tuple[float, str]:
    if None in row or None in row.values():
        raise ConfigError(f"{path}:{line} must have a time and a file: correct it")
    return _seconds(path, line, row["time_s"]), row["file"]


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_TIME_S:
        raise ConfigError(
            f"{path}:{line}: time_s is {text!r}; it must be seconds from 0 to {MAX_TIME_S:g}: correct it"
        )
    return value


def offered(arrivals: Sequence[Due]) -> float:
    """Return the requests a second that were asked for; inf for a burst."""
    span_s = arrivals[-1].time_s
    return len(arrivals) / span_s if span_s else math.inf
