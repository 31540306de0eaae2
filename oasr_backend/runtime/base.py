"""What a model asks of the runtime that runs its graphs.

It knows nothing of streams or of text: arrays in, arrays out. What streams keep between chunks stays where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    context: (batch,), the place of the stream's convolution context.
    """

    samples: Floats
    chunk_length: Ints
    offset: Ints
    cache_length: Ints
    block_table: Ints
    context: Ints


@dataclass(frozen=True, slots=True)
class ChunkOutput:
    """What a batch of chunks gave.

    log_probs: (batch, chunk, vocabulary).
    new: what its rows' streams keep; see `ChunkCaches.keep`.
    """

    log_probs: Floats
    new: Any


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How much streams keep: blocks of (planes, chunk, width), contexts of (layers, conv_frames, conv_size)."""

    num_blocks: int
    block: tuple[int, int, int]
    num_contexts: int
    context: tuple[int, int, int]


Kept = tuple[int, int | None, int]
"""A row of a batch, and the places that its block (None for none) and its context go to."""


class ChunkCaches(Protocol):
    """What streams keep between chunks, by place, and the graph that reads it.

    Everything in it is finite: what a freed place held stays until it is written anew.
    """

    def run(self, batch: ChunkBatch) -> ChunkOutput:
        """Run one chunk of each stream of a batch; several threads may, at once, for streams of their own."""

    def keep(self, output: ChunkOutput, rows: Sequence[Kept]) -> None:
        """Keep what a batch gave; while other batches run, of other streams."""

    def save(self, blocks: Sequence[int], context: int) -> Any:
        """Return what those places hold, in host memory."""

    def load(self, saved: Any, blocks: Sequence[int], context: int) -> None:
        """Put what was saved into as many places."""


class EncoderRuntime(Protocol):
    """Runs a bundle's graphs.

    parallel_batches: how many batches it best runs at a time.
    buckets_frames: lengths to which whole utterances are padded, ascending; () where they are not.
    """

    parallel_batches: int
    buckets_frames: tuple[int, ...]

    def encode(
        self, utterances: Sequence[Floats], chunk_size: int, num_left_chunks: int
    ) -> tuple[Floats, Ints]:
        """Return log-probabilities (batch, frames', vocabulary) of whole utterances and their valid frames' (batch,).

        utterances: each (samples,) in ±1 at 16 kHz, long enough for an encoder frame.
        chunk_size, num_left_chunks: the mask of the attention; 0 for full context, and -1 for all of the past.
        """

    def caches(self, shape: CacheShape) -> ChunkCaches:
        """Return caches of that shape, with the graph of chunks over them."""

    def runs(self) -> Mapping[str, int]:
        """Return the runs of graphs so far: "replay" of captured ones, "eager" without; {} where none is captured."""
