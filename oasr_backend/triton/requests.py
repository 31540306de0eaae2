"""A Triton request as utterances: tensors and parameters parsed, and refused with a reason where they are wrong.

It knows nothing of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasr_backend.errors import ClientError, shown
from oasr_backend.models.base import Samples, TranscribeOptions

PARAMETER_NAMES = (
    "sample_rate",
    "language",
    "task",
    "priority",
    "scheduling_priority",
    "tenant",
    "deadline_ms",
)
"""tritonclient keeps `priority` for Triton's own batcher, so `scheduling_priority` says the same for ours."""

MAX_TENANT_LENGTH = 128
MAX_DEADLINE_MS = 24 * 3600 * 1000
MAX_NUMBER = 2**31 - 1
MAX_KEPT_LENGTH = 256


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request's parameters say; the defaults are a request's without any."""

    sample_rate_hz: int = 16000
    language: str | None = None
    task: str = "transcribe"
    priority: int = 0
    tenant: str | None = None
    deadline_s: float = inf

    def transcribe_options(self, words: bool) -> TranscribeOptions:
        return TranscribeOptions(self.language, self.task, words)


DEFAULT_OPTIONS = RequestOptions()


def read_options(parameters_json: str) -> RequestOptions:
    """Read a request's parameters; raises ClientError for an unknown name or a bad value."""
    short = len(parameters_json) <= MAX_KEPT_LENGTH
    return _read_kept(parameters_json) if short else _read(parameters_json)


def _read(parameters_json: str) -> RequestOptions:
    try:
        parameters = json.loads(parameters_json or "{}")
    except ValueError as error:
        raise ClientError(
            f"the parameters cannot be read: {error}: send names and plain values"
        ) from error
    known = {k: v for k, v in parameters.items() if not k.startswith("triton_")}  # Triton's own
    if not known:
        return DEFAULT_OPTIONS
    for name, value in known.items():
        if name not in PARAMETER_NAMES:
            raise ClientError(
                f"parameter {shown(name)} (value {shown(value)}) is unknown; known are "
                f"{', '.join(PARAMETER_NAMES)} (this one not with streams): correct or remove it"
            )
    deadline_ms = _whole_number(known, "deadline_ms", None, least=1, most=MAX_DEADLINE_MS)
    priority = _whole_number(known, "priority", 0, most=MAX_NUMBER)
    return RequestOptions(
        sample_rate_hz=_whole_number(known, "sample_rate", 16000, least=1, most=MAX_NUMBER)
        or 16000,
        language=_lower(_text(known, "language")),
        task=_text(known, "task") or "transcribe",
        priority=_whole_number(known, "scheduling_priority", priority, most=MAX_NUMBER) or 0,
        tenant=_text(known, "tenant"),
        deadline_s=inf if deadline_ms is None else deadline_ms / 1000,
    )


_read_kept = lru_cache(256)(_read)
"""A client's requests say the same, for the most part."""


def _whole_number(
    parameters: Mapping[str, Any],
    name: str,
    default: int | None,
    *,
    least: int | None = None,
    most: int,
) -> int | None:
    if name not in parameters:
        return default
    value = parameters[name]
    try:
        if isinstance(value, (bool, float)):
            raise TypeError
        number = int(value)
    except (TypeError, ValueError):
        raise ClientError(
            f"parameter {name!r} is {shown(value)}; it must be a whole number: send an integer"
        ) from None
    if least is not None and number < least:
        raise ClientError(
            f"parameter {name!r} is {shown(number)}; it must be at least {least}: raise it"
        )
    if number > most:
        raise ClientError(
            f"parameter {name!r} is {shown(number)}; it must be at most {most}: lower it"
        )
    return number


def _text(parameters: Mapping[str, Any], name: str) -> str | None:
    value = parameters.get(name)
    if value is None or (isinstance(value, str) and 0 < len(value) <= MAX_TENANT_LENGTH):
        return value
    raise ClientError(
        f"parameter {name!r} is {shown(value)}; it must be a text of 1 to {MAX_TENANT_LENGTH} characters: "
        "correct or remove it"
    )


def read_rows(request: Any) -> list[Samples]:
    """Return the utterances of a request, each its row cut to its length, theirs who asks, to keep.

    WAV: (rows, samples) float32; WAV_LENS: (rows, 1) int32, samples that count. Raises ClientError.
    """
    tensors = {tensor.name(): tensor for tensor in request.inputs()}
    wav: NDArray[np.float32] = _array(tensors, "WAV")
    lengths = _array(tensors, "WAV_LENS")
    if wav.ndim != 2:
        raise ClientError(
            f"WAV has shape {list(wav.shape)}; it must be [rows, samples]: send mono audio, a row an utterance"
        )
    if lengths.size != len(wav):
        raise ClientError(
            f"WAV_LENS has shape {list(lengths.shape)} for {len(wav)} rows of WAV; it must be "
            f"[{len(wav)}, 1]: send one length a row"
        )
    return [_cut_row(wav, row, int(n)) for row, n in enumerate(lengths.reshape(-1))]


def _cut_row(wav: NDArray[np.float32], row: int, num_samples: int) -> Samples:
    if not 0 <= num_samples <= wav.shape[1]:
        raise ClientError(
            f"WAV_LENS is {num_samples} in row {row}; it must be from 0 to {wav.shape[1]}, the samples in "
            "WAV's row: send the number of samples that are not padding"
        )
    return _kept(wav[row, :num_samples])


def _kept(samples: Samples) -> Samples:
    """Return `samples` in memory that stays: their own, unless what holds them is Triton's or a quarter larger.

    Triton's stub copies an input once it is asked for it, though that is promised nowhere.
    """
    holder: Any = samples
    while isinstance(holder.base, np.ndarray):
        holder = holder.base
    stays = holder.flags.owndata and 4 * holder.nbytes <= 5 * samples.nbytes
    return samples if stays else samples.copy()


def _lower(text: str | None) -> str | None:
    return text if text is None else text.lower()


def _array(tensors: Mapping[str, Any], name: str) -> NDArray[Any]:
    if name not in tensors:
        raise ClientError(f"input {name} is missing: send it")
    array: NDArray[Any] = tensors[name].as_numpy()
    return array
