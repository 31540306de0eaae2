"""What a model asks of the runtime that runs its graphs.

It knows nothing of streams or of text: arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """One chunk of each of a batch of streams, each at its own offset; see docs/wenet.md for the graph's contract.

    samples: (batch, samples), in ±1 at 16 kHz, what the features of a whole chunk are made of; right-padded.
    chunk_length: (batch,), valid encoder frames; 0 for a row that only fills the batch.
    offset: (batch,), encoder frames of the stream before this chunk.
    cache_length: (batch,), how many of them are visible.
    block_table: (batch, entries), the places of the blocks that hold them.
    pool: (blocks, planes, block, width), all streams' blocks.
    conv_cache: (batch, layers, conv_frames, conv_size).
    """

    samples: Floats
    chunk_length: Ints
    offset: Ints
    cache_length: Ints
    block_table: Ints
    pool: Floats
    conv_cache: Floats


@dataclass(frozen=True, slots=True)
class ChunkOutput:
    """What a batch of chunks gave.

    log_probs: (batch, chunk, vocabulary); new_kv: (batch, planes, chunk, width); new_conv_cache: like
    conv_cache.
    """

    log_probs: Floats
    new_kv: Floats
    new_conv_cache: Floats


class EncoderRuntime(Protocol):
    """Runs a bundle's graphs."""

    def features(self, samples: Floats) -> Floats:
        """Return features (batch, frames, mels) of (batch, samples) in ±1 at 16 kHz, 400 of them at least."""

    def encode(
        self, features: Floats, lengths: Ints, chunk_size: int, num_left_chunks: int
    ) -> tuple[Floats, Ints]:
        """Return log-probabilities (batch, frames', vocabulary) of whole utterances and their valid frames' (batch,).

        features: (batch, frames, mels), right-padded; lengths: (batch,), valid frames.
        chunk_size, num_left_chunks: the mask of the attention; 0 for full context, and -1 for all of the past.
        """

    def encode_chunks(self, batch: ChunkBatch) -> ChunkOutput:
        """Run one chunk of each stream of a batch; several threads may, at once."""
