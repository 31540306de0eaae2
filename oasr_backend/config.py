"""Every option of the engine and its scheduler: named, typed, validated once.

It knows nothing of models or Triton; `read_options` turns the strings of any configuration into a frozen
dataclass, so that each part of the product declares its own options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from oasr_backend.errors import ConfigError

T = TypeVar("T")

ONLY_OF_STREAMS = ("streaming_cohort_admit", "max_streams", "max_buffered_s", "max_idle_s")
ONLY_OF_UTTERANCES = (
    *("max_batch_frames", "length_bucket_ratio", "max_offline_pad_ratio", "length_window_factor"),
    *("cost_exponent", "cost_margin", "cost_table_path", "max_waiting_mb", "max_audio_s"),
)
"""Options that only one of the two engines heeds."""

JOB_SIZES = ("frames", "tokens", "vad")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of the engine and its scheduler.

    max_batch_size: rows of one forward at most, and running streams at most.
    preferred_batch_size: the ladder; batches come in these sizes, unless a request has waited too long.
    schedule_policy: a registered policy's name.
    max_wait_time: seconds after which a waiting request goes next, whatever the policy (`inf` for never).
    max_batch_frames: bound on longest × rows of a batch, in frames of 10 ms; None for no bound.
    length_bucket_ratio: least shortest / longest of a batch; 0 for no bound.
    max_offline_pad_ratio: greatest (longest × rows) / sum of lengths of a batch; 0 for no bound.
    length_window_factor: "window" and "cost" choose among the oldest cap × this many requests.
    cost_exponent: what "cost" counts a request of size s for: s ** this; 0 counts requests, 1 counts audio.
    cost_margin: how much more than a smaller batch a larger one must get done a second for "cost" to take it: 0.1 for a
        tenth. Where the times are no better known than that, small batches are answered sooner.
    streaming_cohort_admit: streams that wait are admitted by length, so that a forward sees similar ones.
    max_streams: running streams at most; None for max_batch_size.
    parallel_batches: batches that run at the same time; 0 for as many as the model best runs, on a CPU one on each core
        that its threads leave.
    fixed_window_frames: frames that every row costs in padding; None where a row costs its length.
    job_size: what orders by size go by: "frames", "tokens" (seconds × kappa) or "vad" (frames with speech).
    kappa: decoded tokens a second of audio; None while unknown, which counts as max_tokens a request.
    adaptive_kappa: learn kappa for each language from the outputs.
    max_tokens: the tokens that a request counts for where kappa is unknown.
    tenant_fairness: serve the tenant with the least audio-seconds served first.
    tenant_weights: "a=2,b=0.5": shares of tenants; 1 for those not named.
    measure_costs_s: seconds of the start that may go, about, into running and measuring the batch sizes; 0 for none.
    cost_table_path: a JSON file that the measured and learnt times are kept in; empty for none.
    max_waiting: utterances accepted and not yet answered; at this many nothing more is accepted.
    max_waiting_mb: megabytes of their samples; at this many nothing more is accepted either.
    max_audio_s: the longest audio of one utterance, in seconds.
    max_buffered_s: seconds of one stream's audio that may wait to run.
    max_idle_s: seconds after which a stream that sends nothing is over.
    nvtx: name steps, preparation, scheduling, features, forwards and decoding for NVIDIA's profilers (package nvtx).
    """

    max_batch_size: int = 32
    preferred_batch_size: tuple[int, ...] | None = None
    schedule_policy: str = "window"
    max_wait_time: float = 0.2
    max_batch_frames: int | None = None
    length_bucket_ratio: float = 0.0
    max_offline_pad_ratio: float = 4.0
    length_window_factor: int = 4
    cost_exponent: float = 0.5
    cost_margin: float = 0.0
    streaming_cohort_admit: bool = True
    max_streams: int | None = None
    parallel_batches: int = 1
    fixed_window_frames: int | None = None
    job_size: str = "frames"
    kappa: float | None = None
    adaptive_kappa: bool = False
    max_tokens: int = 224
    tenant_fairness: bool = False
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    measure_costs_s: float = 5.0
    cost_table_path: str = ""
    max_waiting: int = 512
    max_waiting_mb: int = 1024
    max_audio_s: float = 7200.0
    max_buffered_s: float = 30.0
    max_idle_s: float = 60.0
    nvtx: bool = False

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "max_batch_size", "max_waiting", "max_waiting_mb", "max_batch_frames"
        )
        check_at_least(
            self, 1, "fixed_window_frames", "length_window_factor", "max_streams", "max_tokens"
        )
        check_at_least(
            self,
            0,
            "max_wait_time",
            "max_audio_s",
            "max_buffered_s",
            "max_idle_s",
            "max_offline_pad_ratio",
            "cost_exponent",
            "cost_margin",
            "kappa",
            "measure_costs_s",
            "parallel_batches",
        )
        check_at_most(self, 4096, "max_batch_size", "length_window_factor")
        check_at_most(self, 1_000_000, "max_streams", "max_tokens", "fixed_window_frames", "kappa")
        check_at_most(self, 4, "cost_exponent", "cost_margin")
        check_at_most(self, 256, "parallel_batches")
        if 0 < self.max_offline_pad_ratio < 1:
            raise ConfigError(
                f"max_offline_pad_ratio is {self.max_offline_pad_ratio}; it must be at least 1, or 0 for no bound: "
                "no batch has less than 1"
            )
        check_choice("job_size", self.job_size, JOB_SIZES)
        if not 0 <= self.length_bucket_ratio <= 1:
            raise ConfigError(
                f"length_bucket_ratio is {self.length_bucket_ratio}; it must be from 0 to 1: correct it"
            )
        for tenant, weight in self.tenant_weights.items():
            if not 0 < weight < math.inf:
                raise ConfigError(
                    f"tenant_weights gives {tenant!r} {weight}; a weight must be above 0: raise it"
                )
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


def check_at_most(options: object, most: float, *names: str) -> None:
    """Raise ConfigError for the first named option above `most`; None passes."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value <= most:
            raise ConfigError(f"{name} is {value}; it must be at most {most}: lower it")


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError where a value is none of the allowed."""
    if value not in allowed:
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {', '.join(allowed)}: choose one of them"
        )


def _read_weights(text: str) -> dict[str, float]:
    pairs = (pair.split("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): _read_float(weight) for name, weight in pairs}


def _read_bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _read_float(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def _read_sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "bool": (_read_bool, "true or false"),
    "int": (int, "a whole number"),
    "float": (_read_float, "a number"),
    "str": (str, "a text"),
    "tuple[int, ...]": (_read_sizes, "a list of whole numbers as 1,2,4"),
    "Mapping[str, float]": (_read_weights, "a list as name=weight,name=weight"),
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
    type_names = (
        str(hint).removeprefix("collections.abc.") if not isinstance(hint, type) else hint.__name__
    )
    if "None" in type_names and text.lower() in ("none", ""):
        return None
    reader, allowed = _READERS[type_names.removesuffix(" | None")]
    try:
        return reader(text.strip())
    except (ValueError, KeyError):
        raise ConfigError(f"{name} is {text!r}; it must be {allowed}: correct it") from None
