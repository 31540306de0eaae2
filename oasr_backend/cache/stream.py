"""One stream's place in the pools: its blocks in order, its convolution context, and both while it is swapped out.

A block holds the keys and values of one chunk. It knows nothing of features or text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oasr_backend.cache.pool import Place, Pool
from oasr_backend.runtime.base import ChunkCaches


@dataclass(slots=True)
class CachePools:
    """The places that all streams share, and where they are.

    max_blocks: that one stream may hold; 0 where a chunk sees none before it.
    """

    blocks: Pool
    contexts: Pool
    max_blocks: int
    caches: ChunkCaches


@dataclass(slots=True)
class StreamCache:
    """What one stream holds.

    blocks: its places, the oldest first.
    offset: chunks that have run.
    spare: a place for the next block.
    parked: what the runtime has saved of it, so many blocks and the context, while it is swapped out.
    """

    blocks: list[Place] = field(default_factory=list)
    context: Place | None = None
    offset: int = 0
    spare: Place | None = None
    parked: Any = None
    num_parked: int = 0

    def reserve(self, pools: CachePools) -> bool:
        """Hold a context and room for one more chunk, and what was in host memory; False where there is no room."""
        grows = self.spare is None and self.num_parked + len(self.blocks) < pools.max_blocks
        if self.context is None and not pools.contexts.num_free:
            return False
        places = pools.blocks.take(self.num_parked + grows)
        if places is None:
            return False
        if grows:
            self.spare = places.pop()
        if self.context is None:
            taken = pools.contexts.take()
            assert taken is not None, "one was free a moment ago"
            [self.context] = taken
        if self.parked is not None:
            pools.caches.load(self.parked, places, self.context)
            self.blocks, self.parked, self.num_parked = places, None, 0
        return True

    def append(self, max_blocks: int) -> tuple[Place | None, Place]:
        """Count a chunk that has run; return where its block and its context belong.

        The block goes where room was reserved for it, or in the place of the oldest one; None where none is kept.
        """
        assert self.context is not None, "reserved before it ran"
        self.offset += 1
        if max_blocks == 0:
            return None, self.context
        place = self.spare if self.spare is not None else self.blocks.pop(0)
        self.spare = None
        self.blocks.append(place)
        return place, self.context

    def swap_out(self, pools: CachePools) -> None:
        """Move everything to host memory and free the places."""
        if self.context is not None:
            self.parked = pools.caches.save(self.blocks, self.context)
            self.num_parked = len(self.blocks)
        self.free(pools)

    def free(self, pools: CachePools) -> None:
        """Give every place back."""
        pools.blocks.free(self.blocks + ([self.spare] if self.spare is not None else []))
        pools.contexts.free([self.context] if self.context is not None else [])
        self.blocks, self.spare, self.context = [], None, None
