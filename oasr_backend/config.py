"""Every option of the engine and its scheduler: named, typed, validated once.

It knows nothing of models or Triton; `read_options` turns the strings of any configuration into a frozen
dataclass, so that each part of the product declares its own options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

from oasr_backend.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of the engine and its scheduler.

    max_batch_size: rows of one forward at most, and running streams at most.
    preferred_batch_size: the ladder; batches come in these sizes, unless a request has waited too long.
    schedule_policy: a registered policy's name.
    max_wait_time: seconds after which a waiting request goes next, whatever the policy (`inf` for never).
    max_batch_frames: bound on longest × rows of a batch, in frames of 10 ms; None for no bound.
    fixed_window_frames: frames that every row costs in padding; None where a row costs its length.
    max_waiting: utterances accepted and not yet answered; at this many nothing more is accepted.
    max_waiting_mb: megabytes of their samples; at this many nothing more is accepted either.
    max_audio_s: the longest audio of one utterance, in seconds.
    """

    max_batch_size: int = 32
    preferred_batch_size: tuple[int, ...] | None = None
    schedule_policy: str = "fcfs"
    max_wait_time: float = 0.2
    max_batch_frames: int | None = None
    fixed_window_frames: int | None = None
    max_waiting: int = 512
    max_waiting_mb: int = 1024
    max_audio_s: float = 7200.0

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "max_batch_size", "max_waiting", "max_waiting_mb", "max_batch_frames"
        )
        check_at_least(self, 1, "fixed_window_frames")
        check_at_least(self, 0, "max_wait_time", "max_audio_s")
        if self.preferred_batch_size is not None:
            sizes = tuple(sorted(set(self.preferred_batch_size)))
            object.__setattr__(self, "preferred_batch_size", sizes or None)
            self._check_ladder(sizes)

    def _check_ladder(self, sizes: tuple[int, ...]) -> None:
        for size in sizes:
            if not 1 <= size <= self.max_batch_size:
                raise ConfigError(
                    f"preferred_batch_size holds {size}; every size must be from 1 to max_batch_size "
                    f"({self.max_batch_size}): drop it or raise max_batch_size"
                )


def check_at_least(options: object, least: float, *names: str) -> None:
    """Raise ConfigError for the first named option below `least`; None and `inf` pass."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}: raise it")


def _read_bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _read_float(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "bool": (_read_bool, "true or false"),
    "int": (int, "a whole number"),
    "float": (_read_float, "a number"),
    "str": (str, "a text"),
}


def read_options(options_type: type[T], values: Mapping[str, str], **given: Any) -> T:
    """Build a frozen options dataclass from strings.

    Fields typed `X | None` read "none" (or an empty string) as None. `given` fields are set as they are.
    Keys that are no field of `options_type` are the caller's to judge. Raises ConfigError for a value that
    does not read as its field's type.
    """
    hints = get_type_hints(options_type)
    names = {f.name for f in fields(options_type)}  # type: ignore[arg-type]
    read = {
        name: _read_one(name, text, hints[name]) for name, text in values.items() if name in names
    }
    return options_type(**{**read, **given})


def option_names(*options_types: type) -> list[str]:
    """Return the names of all options of the given dataclasses, sorted."""
    return sorted({f.name for options_type in options_types for f in fields(options_type)})


def _read_one(name: str, text: str, hint: Any) -> Any:
    type_names = str(hint) if not isinstance(hint, type) else hint.__name__
    if "None" in type_names and text.lower() in ("none", ""):
        return None
    reader, allowed = _READERS[type_names.removesuffix(" | None")]
    try:
        return reader(text.strip())
    except (ValueError, KeyError):
        raise ConfigError(f"{name} is {text!r}; it must be {allowed}") from None
