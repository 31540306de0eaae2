"""What goes into a bundle's graphs and what comes out, by name, element type and axes.

Whoever makes a graph, builds it for a device or runs it goes by this table; docs/wenet.md says what the values mean.
It needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, Bundle

FREE_AXES = frozenset(
    ("batch", "samples", "frames", "encoder_frames", "entries", "blocks", "block", "chunk")
)
"""Axes whose size each call chooses; the sizes of all others are the model's."""


@dataclass(frozen=True, slots=True)
class TensorContract:
    """One input or output: "float32" or "int64", and the name of each axis; none for a scalar."""

    dtype: str
    axes: tuple[str, ...] = ()


Tensors = Mapping[str, TensorContract]


@dataclass(frozen=True, slots=True)
class GraphContract:
    """The inputs and outputs of a graph, in the order of its file."""

    inputs: Tensors
    outputs: Tensors


def _floats(*axes: str) -> TensorContract:
    return TensorContract("float32", axes)


def _ints(*axes: str) -> TensorContract:
    return TensorContract("int64", axes)


_CONV_CACHE = _floats("batch", "conv_layers", "conv_frames", "conv_size")

CONTRACTS: Mapping[str, GraphContract] = {
    FEATURES_FILE: GraphContract(
        inputs={"samples": _floats("batch", "samples")},
        outputs={"features": _floats("batch", "frames", "mels")},
    ),
    ENCODER_FILE: GraphContract(
        inputs={
            "features": _floats("batch", "frames", "mels"),
            "feature_lengths": _ints("batch"),
            "chunk_size": _ints(),
            "num_left_chunks": _ints(),
        },
        outputs={
            "log_probs": _floats("batch", "encoder_frames", "tokens"),
            "log_prob_lengths": _ints("batch"),
        },
    ),
    CHUNK_FILE: GraphContract(
        inputs={
            "features": _floats("batch", "frames", "mels"),
            "chunk_length": _ints("batch"),
            "offset": _ints("batch"),
            "cache_length": _ints("batch"),
            "block_table": _ints("batch", "entries"),
            "pool": _floats("blocks", "planes", "block", "width"),
            "conv_cache": _CONV_CACHE,
        },
        outputs={
            "log_probs": _floats("batch", "chunk", "tokens"),
            "new_kv": _floats("batch", "planes", "chunk", "width"),
            "new_conv_cache": _CONV_CACHE,
        },
    ),
}


def model_sizes(bundle: Bundle) -> dict[str, int]:
    """Return the sizes of the axes that are the model's, by their names."""
    sizes = {"mels": bundle.features.num_mels, "tokens": len(bundle.tokens)}
    if bundle.streaming is not None:
        sizes |= {
            "planes": bundle.streaming.num_planes,
            "width": bundle.streaming.plane_width,
            "conv_layers": bundle.streaming.conv_layers,
            "conv_frames": bundle.streaming.conv_frames,
            "conv_size": bundle.streaming.conv_size,
        }
    return sizes
