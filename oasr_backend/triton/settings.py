"""A Triton model's `config.pbtxt` as the options of the engine and of the model family.

The one place for configuration: the batch sizes are Triton's own fields, everything else is a parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasr_backend.config import (
    ONLY_OF_STREAMS,
    ONLY_OF_UTTERANCES,
    EngineConfig,
    option_names,
    read_options,
)
from oasr_backend.errors import ConfigError
from oasr_backend.models import FAMILIES, Family

log = logging.getLogger(__name__)

FROM_TRITON = ("max_batch_size", "preferred_batch_size")
"""Options that Triton has fields of its own for."""

FROM_MODEL = ("fixed_window_frames",)
"""Options that follow from the loaded model."""

TRITONS_IDLE_US = 1_000_000
"""What Triton takes where `max_sequence_idle_microseconds` is not set."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a model repository says of one model.

    engine: its strings still lack what only the loaded model knows: see `engine_config`.
    bounds_triton_queue: Triton itself refuses requests when its queue is full.
    """

    model_name: str
    family: Family
    family_options: Any
    engine_values: Mapping[str, str]
    max_batch_size: int
    preferred_batch_size: tuple[int, ...] | None
    bounds_triton_queue: bool

    def engine_config(self, fixed_window_frames: int | None) -> EngineConfig:
        """Return the engine's options, or raise ConfigError."""
        return read_options(
            EngineConfig,
            self.engine_values,
            max_batch_size=self.max_batch_size,
            preferred_batch_size=self.preferred_batch_size,
            fixed_window_frames=fixed_window_frames,
        )


def read_settings(model_config: Mapping[str, Any]) -> Settings:
    """Read Triton's model configuration (the JSON that the Python backend hands over).

    Raises ConfigError naming the key, the value, what is allowed and the remedy.
    """
    parameters = {
        key: value["string_value"] for key, value in model_config.get("parameters", {}).items()
    }
    family_name = parameters.pop("model_family", "whisper")
    family = _read_family(family_name)
    has_streams = "sequence_batching" in model_config
    if has_streams and family.load_streams is None:
        streaming = ", ".join(sorted(name for name, each in FAMILIES.items() if each.load_streams))
        raise ConfigError(
            f"model_family is {family_name!r}, which cannot stream; of streams it must be one of {streaming}: choose "
            "one, or serve this one as whole utterances (model_repository/asr_offline)"
        )
    own_names = option_names(EngineConfig)
    _check_names(parameters, family_name, own_names)
    _warn_of_idle_options(parameters, has_streams)
    max_batch_size = int(model_config.get("max_batch_size", 0))
    if max_batch_size < 1:
        raise ConfigError(f"max_batch_size is {max_batch_size}; it must be at least 1: raise it")
    batching = model_config.get("sequence_batching", {}).get("oldest")
    batching = batching or model_config.get("dynamic_batching", {})
    sizes = batching.get("preferred_batch_size") or None
    ladder = tuple(int(size) for size in sizes) if sizes else None
    settings = Settings(
        model_name=model_config["name"],
        family=family,
        family_options=_read_family_options(family, parameters, ladder),
        engine_values={k: v for k, v in parameters.items() if k in own_names},
        max_batch_size=max_batch_size,
        preferred_batch_size=ladder,
        bounds_triton_queue=_bounds_queue(model_config.get("dynamic_batching", {})),
    )
    settings.engine_config(fixed_window_frames=None)
    return settings


def _read_family_options(
    family: Family, parameters: Mapping[str, str], ladder: tuple[int, ...] | None
) -> Any:
    """Read a family's own options; one that prepares itself for the ladder's sizes is told them."""
    told = {name: ladder for name in option_names(family.options) if name in FROM_TRITON}
    return read_options(family.options, parameters, **told)


def check_streaming(model_config: Mapping[str, Any], config: EngineConfig) -> None:
    """Raise ConfigError where a model's configuration is none for streams."""
    oldest = model_config.get("sequence_batching", {}).get("oldest")
    if oldest is None:
        raise ConfigError(
            "config.pbtxt has no sequence_batching { oldest { } }; a model of streams gets their chunks through it: "
            "add it, as model_repository/asr_streaming has it"
        )
    if model_config.get("response_cache", {}).get("enable"):
        raise ConfigError(
            "response_cache is enabled; a stream's answer depends on what came before, and the cache would mix "
            "streams up: remove response_cache"
        )
    num_candidates = int(oldest.get("max_candidate_sequences", 0))
    most = (config.max_streams or config.max_batch_size) + config.max_waiting
    if num_candidates <= most:
        raise ConfigError(
            f"max_candidate_sequences is {num_candidates}; it must be above max_streams and max_waiting together "
            f"({most}), or Triton holds streams back that the scheduler should see: raise it"
        )
    idle_us = int(model_config["sequence_batching"].get("max_sequence_idle_microseconds", 0))
    idle_s = (idle_us or TRITONS_IDLE_US) / 1e6
    if idle_s < config.max_idle_s:
        log.warning(
            "max_idle_s is %g, but Triton forgets a stream that sends nothing for %g s "
            "(max_sequence_idle_microseconds): a later chunk is refused then; raise that to %d, or lower max_idle_s",
            config.max_idle_s,
            idle_s,
            round(config.max_idle_s * 1e6),
        )


def _bounds_queue(batching: Mapping[str, Any]) -> bool:
    policies = [
        batching.get("default_queue_policy", {}),
        *batching.get("priority_queue_policy", {}).values(),
    ]
    return any(int(policy.get("max_queue_size", 0)) > 0 for policy in policies)


def _read_family(name: str) -> Family:
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(
            f"model_family is {name!r}; it must be one of {known}: choose one of them"
        )
    return FAMILIES[name]


def _check_names(parameters: Mapping[str, str], family_name: str, own_names: list[str]) -> None:
    for name in FROM_TRITON:
        if name in parameters:
            raise ConfigError(
                f"parameters hold {name} = {parameters[name]!r}; it is a field of config.pbtxt itself: "
                "set max_batch_size there, and preferred_batch_size in dynamic_batching or sequence_batching.oldest"
            )
    known = {*own_names, *option_names(FAMILIES[family_name].options), "model_family"}
    known -= {*FROM_TRITON, *FROM_MODEL}
    unknown = parameters.keys() - known
    for other_name, other in FAMILIES.items():
        if foreign := sorted(unknown & set(option_names(other.options))):
            raise ConfigError(
                f"parameters hold {', '.join(foreign)}, for models of model_family {other_name!r}; this one's is "
                f"{family_name!r}: remove them"
            )
    for name, value in parameters.items():
        if name not in known:
            raise ConfigError(
                f"parameters hold {name} = {value!r}, which is no option; it must be one of "
                f"{', '.join(sorted(known))}: correct or remove it"
            )


def _warn_of_idle_options(parameters: Mapping[str, str], has_streams: bool) -> None:
    """Say which options do nothing here."""
    for name in parameters.keys() & set(ONLY_OF_UTTERANCES if has_streams else ONLY_OF_STREAMS):
        others = "whole utterances" if has_streams else "streams"
        log.warning("parameters hold %s, which is for %s: it does nothing here", name, others)
