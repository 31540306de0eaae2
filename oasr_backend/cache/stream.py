"""One stream's place in the pools: its blocks in order, its convolution context, and both while it is swapped out.

A block holds the keys and values of one chunk. It knows nothing of features or text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oasr_backend.cache.pool import Place, Pool

Array = NDArray[np.float32]


@dataclass(slots=True)
class CachePools:
    """The pools that all streams share.

    blocks: (blocks, planes, chunk, width) float32.
    contexts: (streams, layers, conv_frames, conv_size) float32.
    max_blocks: that one stream may hold; 0 where a chunk sees none before it.
    """

    blocks: Pool
    contexts: Pool
    max_blocks: int


@dataclass(slots=True)
class StreamCache:
    """What one stream holds.

    blocks: its places, the oldest first.
    offset: chunks that have run.
    """

    blocks: list[Place] = field(default_factory=list)
    context: Place | None = None
    offset: int = 0
    spare: Place | None = None
    parked: tuple[Array, Array] | None = None

    def reserve(self, pools: CachePools) -> bool:
        """Hold a context and room for one more chunk, and what was in host memory; False where there is no room."""
        num_wanted = 0 if self.parked is None else len(self.parked[0])
        grows = self.spare is None and num_wanted + len(self.blocks) < pools.max_blocks
        if self.context is None and not pools.contexts.num_free:
            return False
        places = pools.blocks.take(num_wanted + grows)
        if places is None:
            return False
        if grows:
            self.spare = places.pop()
        if self.context is None:
            taken = pools.contexts.take()
            assert taken is not None, "one was free a moment ago"
            [self.context] = taken
        if self.parked is not None:
            kept, context = self.parked
            self.blocks, self.parked = places, None
            pools.blocks.array[places] = kept
            pools.contexts.array[self.context] = context
        return True

    def append(self, pools: CachePools, keys_values: Array, context: Array) -> None:
        """Keep a chunk that has run: in the room reserved for it, or in the place of the oldest one.

        keys_values: (planes, chunk, width); context: (layers, conv_frames, conv_size).
        """
        assert self.context is not None, "reserved before it ran"
        self.offset += 1
        pools.contexts.array[self.context] = context
        if pools.max_blocks == 0:
            return
        place = self.spare if self.spare is not None else self.blocks.pop(0)
        self.spare = None
        pools.blocks.array[place] = keys_values
        self.blocks.append(place)

    def swap_out(self, pools: CachePools) -> None:
        """Move everything to host memory and free the places."""
        if self.context is not None:
            self.parked = (
                pools.blocks.array[self.blocks],
                pools.contexts.array[self.context].copy(),
            )
        self.free(pools)

    def free(self, pools: CachePools) -> None:
        """Give every place back."""
        pools.blocks.free(self.blocks + ([self.spare] if self.spare is not None else []))
        pools.contexts.free([self.context] if self.context is not None else [])
        self.blocks, self.spare, self.context = [], None, None
