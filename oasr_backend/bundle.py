"""A bundle: a folder with an exported CTC model and all that serving must know of it.

`bundle.json` says what the graphs expect, `tokens.txt` what their outputs spell. It knows neither how a bundle is made
nor which runtime runs it, and needs the standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from oasr_backend.errors import ConfigError, shown

T = TypeVar("T")

FORMAT = "oasr-ctc-2"
METADATA_FILE = "bundle.json"
TOKENS_FILE = "tokens.txt"
FEATURES_FILE = "features.onnx"
ENCODER_FILE = "encoder.onnx"
CHUNK_FILE = "chunk.onnx"

REMEDY = "export the bundle again with scripts/export_wenet.py"


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """How the model's features are made: Kaldi's log-mel filter bank, as WeNet computes it.

    Samples at `sample_rate_hz` in the range of 16-bit integers (±1 times 32768), no dither, preemphasis 0.97, povey
    window, offset removed from each frame, only whole frames (`snip_edges`), power spectrum, mels from 20 Hz to half of
    the sample rate, no energy, natural logarithm. `features.onnx` makes them; CMVN is part of the other graphs.
    """

    num_mels: int = 80
    sample_rate_hz: int = 16000
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0


@dataclass(frozen=True, slots=True)
class StreamingSettings:
    """What `chunk.onnx` caches of a stream, and the chunks that are meant for it.

    num_planes, plane_width: a cached frame is (num_planes, plane_width) float32 in the pool.
    conv_layers, conv_frames, conv_size: the convolution cache of a stream is (layers, frames, size) float32.
    chunk_size: encoder frames of a chunk. The graph takes any number.
    num_left_chunks: chunks of the past that a chunk should see; -1 for all. The graph goes by `cache_length`.
    """

    num_planes: int
    plane_width: int
    conv_layers: int
    conv_frames: int
    conv_size: int
    chunk_size: int = 16
    num_left_chunks: int = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """What `bundle.json` and `tokens.txt` say.

    subsampling: feature frames from one encoder frame to the next.
    context_frames: feature frames that one encoder frame sees.
    tokens: by id, `blank_id` among them. "▁" stands for a space.
    token_separator: what stands between tokens in a text.
    streaming: None where the model cannot stream and there is no `chunk.onnx`.
    offline_chunk_size: the `chunk_size` that `encoder.onnx` should get; 0 for full context.
    """

    tokens: tuple[str, ...]
    features: FeatureSettings
    streaming: StreamingSettings | None
    blank_id: int = 0
    token_separator: str = ""
    subsampling: int = 4
    context_frames: int = 7
    offline_chunk_size: int = 0

    @property
    def graph_files(self) -> tuple[str, ...]:
        """The files of its graphs."""
        whole = (FEATURES_FILE, ENCODER_FILE)
        return whole if self.streaming is None else (*whole, CHUNK_FILE)

    def chunk_frames(self, num_encoder_frames: int) -> int:
        """Return how many feature frames so many encoder frames need."""
        return (num_encoder_frames - 1) * self.subsampling + self.context_frames

    def encoder_frames(self, num_frames: int) -> int:
        """Return how many encoder frames so many feature frames make."""
        return max((num_frames - self.context_frames) // self.subsampling + 1, 0)


def write_bundle(folder: Path, bundle: Bundle) -> None:
    """Write `bundle.json` and `tokens.txt`, the same bytes for the same bundle."""
    metadata = {"format": FORMAT, **asdict(bundle)}
    del metadata["tokens"]
    (folder / METADATA_FILE).write_text(json.dumps(metadata, indent=2) + "\n", "utf-8")
    write_tokens(folder / TOKENS_FILE, bundle.tokens)


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's metadata and check that its graphs are there. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(
            f"model_dir is {str(folder)!r}, which is no folder; a relative path counts from where the server was "
            f"started ({Path.cwd()}): correct it"
        )
    if (folder / "final.pt").exists() and not (folder / METADATA_FILE).exists():
        raise ConfigError(
            f"model_dir is {str(folder)!r}, which holds a checkpoint; a bundle is needed: export it with "
            "scripts/export_wenet.py, and give its --output"
        )
    path = folder / METADATA_FILE
    try:
        metadata = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); a bundle must have it: {REMEDY}"
        ) from error
    if not isinstance(metadata, dict) or metadata.pop("format", None) != FORMAT:
        raise ConfigError(f"{path} is not of format {FORMAT!r}: {REMEDY}")
    features = _read(FeatureSettings, metadata.pop("features", {}), path)
    streaming = metadata.pop("streaming", None)
    if streaming is not None:
        streaming = _read(StreamingSettings, streaming, path)
    tokens = read_tokens(folder / TOKENS_FILE)
    parts = {"tokens": tokens, "features": features, "streaming": streaming}
    bundle = _read(Bundle, {**metadata, **parts}, path)
    for part in (bundle, features, *([streaming] if streaming else [])):
        _check_ranges(part, path)
    for name in bundle.graph_files:
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} has no {name}, which its {METADATA_FILE} names: {REMEDY}")
    if not 0 <= bundle.blank_id < len(tokens):
        raise ConfigError(
            f"{path}: blank_id is {bundle.blank_id}; there are {len(tokens)} tokens: {REMEDY}"
        )
    return bundle


_RANGES = {
    "subsampling": (1, 64),
    "context_frames": (1, 1000),
    "offline_chunk_size": (-1, 100_000),
    "num_mels": (1, 1000),
    "sample_rate_hz": (1, 192_000),
    "frame_length_ms": (1, 1000),
    "frame_shift_ms": (1, 1000),
    "chunk_size": (1, 1024),
    "num_left_chunks": (-1, 100_000),
    "num_planes": (1, 100_000),
    "plane_width": (1, 100_000),
}
"""What the numbers of a bundle can be."""


def _check_ranges(part: object, path: Path) -> None:
    for name, (low, high) in _RANGES.items():
        value = getattr(part, name, low)
        if not low <= value <= high:
            raise ConfigError(
                f"{path}: {name} is {value}; it must be from {low} to {high}: {REMEDY}"
            )


_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}


def _read(kind: type[T], values: Any, path: Path) -> T:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping) or set(values) - names:
        unknown = sorted(set(values) - names) if isinstance(values, Mapping) else values
        raise ConfigError(
            f"{path} holds {shown(unknown)}, which this version does not know: {REMEDY}"
        )
    for field in fields(kind):  # type: ignore[arg-type]
        allowed, value = _TYPES.get(str(field.type)), values.get(field.name)
        if allowed and field.name in values and type(value) not in allowed:
            raise ConfigError(
                f"{path}: {field.name} is {shown(value)}; it must be of type {field.type}: {REMEDY}"
            )
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{path} is not complete ({error}): {REMEDY}") from error


def write_tokens(path: Path, tokens: tuple[str, ...]) -> None:
    """Write one line a token: the token, a space, its id."""
    path.write_text("".join(f"{token} {index}\n" for index, token in enumerate(tokens)), "utf-8")


def read_tokens(path: Path) -> tuple[str, ...]:
    """Read the tokens of a file of lines `token id` in the order of their ids. Raises ConfigError."""
    try:
        lines = path.read_text("utf-8").removeprefix("\ufeff").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); it must hold lines of a token and its id: correct it"
        ) from error
    tokens: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = re.fullmatch(r"(\S+)[ \t]+(\d+)\s*", line)
        if not match or int(match[2]) in tokens:
            raise ConfigError(
                f"{path}:{number} is {shown(line)}; a line must be a token and an id of its own: correct it"
            )
        tokens[int(match[2])] = match[1]
    if not tokens or sorted(tokens) != list(range(len(tokens))):
        raise ConfigError(
            f"{path} has {len(tokens)} tokens; their ids must be 0 to {len(tokens) - 1}: correct it"
        )
    return tuple(tokens[index] for index in range(len(tokens)))
