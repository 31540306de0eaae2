"""Streams over a shared pool of key/value blocks, kept as plainly as the contract of `chunk.onnx` allows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

NO_LIMIT = 10**6


@dataclass
class Stream:
    """A stream being fed chunk by chunk, and the log-probabilities so far.

    blocks: by their place in the stream, the pool's blocks that hold its frames; given back ones are left out.
    """

    features: np.ndarray
    conv_cache: np.ndarray
    offset: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    swapped: dict[int, np.ndarray] = field(default_factory=dict)
    log_probs: list[np.ndarray] = field(default_factory=list)

    @property
    def num_frames(self) -> int:
        return (len(self.features) - 7) // 4 + 1

    @property
    def done(self) -> bool:
        return self.offset >= self.num_frames


class PagedStreams:
    """Runs chunks of any of its streams in one forward."""

    def __init__(self, run, settings, chunk_size, num_left_chunks, block=16, num_blocks=64, seed=0):
        self.run, self.settings, self.chunk_size, self.block = run, settings, chunk_size, block
        self.window = NO_LIMIT if num_left_chunks < 0 else num_left_chunks * chunk_size
        self.random = random.Random(seed)
        self.free = list(range(num_blocks))
        noise = np.random.default_rng(seed)  # what earlier owners left behind
        shape = (num_blocks, settings.num_planes, block, settings.plane_width)
        self.pool = noise.normal(0, 3, shape).astype(np.float32)

    def open(self, features):
        conv_shape = (self.settings.conv_layers, self.settings.conv_frames, self.settings.conv_size)
        return Stream(features, np.full(conv_shape, 9.0, np.float32))  # not looked at, at offset 0

    def step(self, streams):
        """Feed one chunk of each stream."""
        entries = 1 + max(len(self.cached(stream)) for stream in streams)
        outputs = self.run(self.inputs(streams, entries))
        for row, stream in enumerate(streams):
            self.store(stream, *(output[row] for output in outputs))

    def inputs(self, streams, entries):
        features, lengths, tables = [], [], []
        for stream in streams:
            chunk = stream.features[4 * stream.offset :][: 4 * self.chunk_size + 3]
            features.append(np.pad(chunk, ((0, 4 * self.chunk_size + 3 - len(chunk)), (0, 0))))
            lengths.append(min(self.chunk_size, stream.num_frames - stream.offset))
            named = [stream.blocks[place] for place in self.cached(stream)]
            anything = [self.random.randrange(len(self.pool)) for _ in range(entries - len(named))]
            tables.append(named + anything)
        return {
            "features": np.stack(features),
            "chunk_length": np.array(lengths),
            "offset": np.array([stream.offset for stream in streams]),
            "cache_length": np.array([self.visible(stream) for stream in streams]),
            "block_table": np.array(tables),
            "pool": self.pool,
            "conv_cache": np.stack([stream.conv_cache for stream in streams]),
        }

    def visible(self, stream):
        return min(stream.offset, self.window)

    def cached(self, stream):
        """Return the places of the blocks that hold what the next chunk sees."""
        first = stream.offset - self.visible(stream)
        return range(first // self.block, -(-stream.offset // self.block)) if stream.offset else []

    def store(self, stream, log_probs, new_kv, new_conv_cache):
        num_frames = min(self.chunk_size, stream.num_frames - stream.offset)
        stream.log_probs.append(log_probs[:num_frames])
        stream.conv_cache = new_conv_cache
        for frame in range(num_frames):
            place, slot = divmod(stream.offset + frame, self.block)
            if place not in stream.blocks:
                stream.blocks[place] = self.take()
            self.pool[stream.blocks[place], :, slot] = new_kv[:, frame]
        stream.offset += num_frames
        self.give_back(stream, set(stream.blocks) - set(self.cached(stream)))

    def take(self):
        return self.free.pop(self.random.randrange(len(self.free)))

    def give_back(self, stream, places):
        self.free += [stream.blocks.pop(place) for place in sorted(places)]

    def close(self, stream):
        self.give_back(stream, set(stream.blocks))

    def swap_out(self, stream):
        stream.swapped = {place: self.pool[block].copy() for place, block in stream.blocks.items()}
        self.close(stream)

    def swap_in(self, stream):
        for place, content in stream.swapped.items():
            stream.blocks[place] = self.take()
            self.pool[stream.blocks[place]] = content
        stream.swapped = {}
