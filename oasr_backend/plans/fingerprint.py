"""What a plan was built of and for, kept beside it, so that a plan that no longer fits is named and not run.

It needs the standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from oasr_backend.errors import ConfigError

PRECISIONS = ("fp32", "fp16", "bf16")
"""Of a plan's weights; see precision.py."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides whether a plan can run, and is the plan that is wanted.

    flavour: "tensorrt" or "tensorrt_rtx".
    version: of that library; a plan runs with the one that built it.
    compute_capabilities: the cards that it runs on, as "8.9".
    onnx_sha256: of the graph's file.
    options: precision and sizing, as plain data.
    """

    flavour: str
    version: str
    compute_capabilities: tuple[str, ...]
    onnx_sha256: str
    options: Mapping[str, Any] = field(default_factory=dict)


def plan_path(onnx_path: Path, flavour: str) -> Path:
    """Return where the plan of a graph lies: beside it."""
    return onnx_path.with_name(f"{onnx_path.stem}.{flavour}.plan")


def fingerprint_path(plan: Path) -> Path:
    """Return where a plan's fingerprint lies: beside it."""
    return plan.with_name(f"{plan.name}.json")


def sha256(path: Path) -> str:
    """Return a file's hash, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_text(fingerprint: Fingerprint, plan_sha256: str) -> str:
    """Return a fingerprint as JSON, with the hash of the plan that it is of."""
    values = {**asdict(fingerprint), "plan_sha256": plan_sha256}
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def check_fingerprint(plan: Path, wanted: Fingerprint, rebuild: str) -> None:
    """Raise ConfigError unless a plan is there, and is what is wanted.

    wanted: with the one compute capability of the card at hand, which must be among the plan's.
    rebuild: the command that builds it, for the error.
    """
    found = read_fingerprint(plan, rebuild)
    different = [
        f"{name} {_shown(getattr(found, name))}, not {_shown(getattr(wanted, name))}"
        for name in (each.name for each in fields(Fingerprint))
        if not _fits(name, getattr(found, name), getattr(wanted, name))
    ]
    if different:
        raise ConfigError(f"{plan} was built for {'; '.join(different)}: build it again: {rebuild}")


def read_fingerprint(plan: Path, rebuild: str) -> Fingerprint:
    """Return what is said beside a plan; ConfigError where one of the two is missing, unreadable, or of another."""
    path = fingerprint_path(plan)
    if not plan.is_file() or not path.is_file():
        raise ConfigError(f"{plan if not plan.is_file() else path} is missing: build it: {rebuild}")
    try:
        fingerprint, plan_sha256 = _read(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} holds no fingerprint ({error!r}): build the plan again: {rebuild}"
        ) from error
    if sha256(plan) != plan_sha256:
        raise ConfigError(
            f"{plan} is not the plan that {path.name} is of, or was damaged: build it again: {rebuild}"
        )
    return fingerprint


def _read(values: Any) -> tuple[Fingerprint, str]:
    """Return a fingerprint and the hash of its plan, of what JSON gave; TypeError or KeyError for anything else."""
    cards, options = values.pop("compute_capabilities"), values.pop("options")
    if not isinstance(cards, list) or not isinstance(options, dict):
        raise TypeError("compute_capabilities must be a list, options an object")
    for text in (*cards, *values.values()):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} must be a text")
    plan_sha256 = values.pop("plan_sha256")
    return Fingerprint(**values, compute_capabilities=tuple(cards), options=options), plan_sha256


def _fits(name: str, found: Any, wanted: Any) -> bool:
    if name == "compute_capabilities":
        return set(wanted) <= set(found)
    return bool(found == _plain(wanted))


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back: lists for tuples."""
    return json.loads(json.dumps(value))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(value)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)
