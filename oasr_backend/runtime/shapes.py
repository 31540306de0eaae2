"""What a bundle's graphs read and write at a shape: the contract's axes with their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, Bundle
from oasr_backend.contract import CONTRACTS, Tensors, model_sizes
from oasr_backend.features import fbank
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.graphs import Key, Spec

CACHED = ("pool", "conv_cache", "new_kv", "new_conv_cache")
"""What is as narrow as the weights."""

Sizes = Mapping[str, int]


class GraphShapes:
    """The tensors of one graph at a key: (rows, samples), (rows, frames), or (rows,) for chunks."""

    def __init__(
        self, name: str, bundle: Bundle, sizing: Sizing, cache_dtype: str = "float32"
    ) -> None:
        self.contract = CONTRACTS[name]
        self._own = model_sizes(bundle)
        self._cache_dtype = cache_dtype
        sizes: dict[str, Callable[[Key], Sizes]] = {
            FEATURES_FILE: lambda key: {
                "samples": key[1],
                "frames": fbank.num_frames(key[1]),
            },
            ENCODER_FILE: lambda key: {
                "frames": key[1],
                "encoder_frames": bundle.encoder_frames(key[1]),
            },
            CHUNK_FILE: lambda _: {
                "frames": bundle.chunk_frames(sizing.chunk_size),
                "entries": max(1, sizing.max_entries),
                "block": sizing.chunk_size,
                "chunk": sizing.chunk_size,
                "blocks": 1,  # as many as the caches have: their owner says
            },
        }
        self._sizes = sizes[name]

    def inputs(self, key: Key) -> dict[str, Spec]:
        """Return what the graph reads."""
        return self._specs(self.contract.inputs, key)

    def outputs(self, key: Key) -> dict[str, Spec]:
        """Return what the graph writes."""
        return self._specs(self.contract.outputs, key)

    def _specs(self, tensors: Tensors, key: Key) -> dict[str, Spec]:
        sizes = {**self._own, "batch": key[0], **self._sizes(key)}
        return {
            name: Spec(
                tuple(sizes[axis] for axis in tensor.axes),
                self._cache_dtype if name in CACHED else tensor.dtype,
            )
            for name, tensor in tensors.items()
        }
