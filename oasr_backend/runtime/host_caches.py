"""Caches in host memory, for a runtime that takes and gives arrays there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from oasr_backend.runtime.base import CacheShape, ChunkBatch, ChunkOutput, Floats, Ints, Kept

RunChunks = Callable[[Floats, Mapping[str, Floats | Ints]], tuple[Floats, Floats, Floats]]
"""Runs the graph of chunks on samples and its other inputs by name: log_probs, new_kv and new_conv_cache."""

Saved = tuple[Floats, Floats]


class HostCaches:
    """Key/value blocks and convolution contexts in two arrays.

    blocks: (blocks, planes, chunk, width) float32.
    contexts: (contexts, layers, conv_frames, conv_size) float32.
    """

    def __init__(self, shape: CacheShape, run_chunks: RunChunks) -> None:
        self.blocks: Floats = np.zeros((max(1, shape.num_blocks), *shape.block), np.float32)
        self.contexts: Floats = np.zeros((shape.num_contexts, *shape.context), np.float32)
        self._run_chunks = run_chunks

    def run(self, batch: ChunkBatch) -> ChunkOutput:
        log_probs, new_kv, new_conv_cache = self._run_chunks(
            batch.samples,
            {
                "chunk_length": batch.chunk_length,
                "offset": batch.offset,
                "cache_length": batch.cache_length,
                "block_table": batch.block_table,
                "pool": self.blocks,
                "conv_cache": self.contexts[batch.context],
            },
        )
        return ChunkOutput(log_probs, (new_kv, new_conv_cache))

    def keep(self, output: ChunkOutput, rows: Sequence[Kept]) -> None:
        new_kv, new_conv_cache = output.new
        for row, block, context in rows:
            self.contexts[context] = new_conv_cache[row]
            if block is not None:
                self.blocks[block] = new_kv[row]

    def save(self, blocks: Sequence[int], context: int) -> Saved:
        return self.blocks[list(blocks)], self.contexts[context].copy()

    def load(self, saved: Saved, blocks: Sequence[int], context: int) -> None:
        self.blocks[list(blocks)], self.contexts[context] = saved
