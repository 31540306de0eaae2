"""A bundle's graphs on a device that replays captured work, whoever computes it: TensorRT or PyTorch.

Batches are padded to the next rung and whole utterances to the next duration bucket, for each of which there is a
captured graph. What streams keep between chunks never leaves the device. It needs torch, and no GPU: a device may be a
test's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from oasr_backend.audio import Samples
from oasr_backend.bundle import Bundle
from oasr_backend.features import fbank
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.base import (
    CacheShape,
    ChunkBatch,
    ChunkOutput,
    Floats,
    Ints,
    Kept,
)
from oasr_backend.runtime.graphs import (
    Buffer,
    Computation,
    Device,
    Key,
    Spec,
    StaticCalls,
    next_above,
)
from oasr_backend.spans import span

NEW = ("new_kv", "new_conv_cache")
"""What a batch of chunks gives its streams to keep."""


@dataclass(frozen=True, slots=True)
class Computations:
    """What a bundle computes, each at (rows, length): samples, feature frames, or nothing for chunks: (rows,).

    chunk is None where the model cannot stream.
    """

    features: Computation
    encoder: Computation
    chunk: Computation | None


class GraphedRuntime:
    """Runs a bundle's computations on a device."""

    parallel_batches = 1
    """The device does one after the other."""

    def __init__(
        self,
        device: Device,
        computations: Computations,
        bundle: Bundle,
        sizing: Sizing,
        feature_rungs: Sequence[int] = (),
    ) -> None:
        """Set up; nothing is captured before `prewarm`.

        feature_rungs: batch sizes of the features' own graphs; () for those of the ladder.
        """
        self.buckets_frames = sizing.buckets_frames
        self._device, self._bundle, self._sizing = device, bundle, sizing
        self._feature_rungs = tuple(feature_rungs) or sizing.rungs
        self._features = StaticCalls(device, computations.features, "features")
        self._encoder = StaticCalls(device, computations.encoder, "encoder")
        self._chunk = computations.chunk
        self._caches: list[DeviceCaches] = []

    def runs(self) -> dict[str, int]:
        calls = [self._features, self._encoder, *(caches.calls for caches in self._caches)]
        return {
            "replay": sum(each.num_replays for each in calls),
            "eager": sum(each.num_eager for each in calls),
        }

    def prewarm(self) -> None:
        """Capture the graphs of whole utterances, one for each rung and duration bucket."""
        frames = self._sizing.buckets_frames
        self._features.prepare(
            product(self._feature_rungs, [fbank.num_samples(length) for length in frames])
        )
        self._encoder.prepare(product(self._sizing.rungs, frames))

    def encode(
        self, utterances: Sequence[Samples], chunk_size: int, num_left_chunks: int
    ) -> tuple[Floats, Ints]:
        lengths = [fbank.num_frames(len(samples)) for samples in utterances]
        rows = next_above(self._sizing.rungs, len(utterances))
        frames = next_above(self._sizing.buckets_frames, max(lengths))
        with span("features"):
            features = self._make_features(utterances, frames)
        call = self._encoder.at((rows, frames))
        padded_lengths = np.zeros(rows, np.int64)
        padded_lengths[: len(lengths)] = lengths
        call.write(
            {
                "feature_lengths": padded_lengths,
                "chunk_size": np.array(chunk_size),
                "num_left_chunks": np.array(num_left_chunks),
            }
        )
        self._device.run(lambda: copy_rows(call.buffers["features"], features))
        with span("forward"):
            self._encoder.run(call)
            log_probs, encoded_lengths = call.read("log_probs", "log_prob_lengths")
        return log_probs[: len(lengths)], encoded_lengths[: len(lengths)]

    def caches(self, shape: CacheShape) -> DeviceCaches:
        assert self._chunk is not None, "a bundle without chunk.onnx is refused before"
        caches = DeviceCaches(self._device, self._chunk, self._features, shape, self._sizing.rungs)
        caches.prewarm(fbank.num_samples(self._bundle.chunk_frames(shape.block[1])))
        self._caches.append(caches)
        return caches

    def _make_features(self, utterances: Sequence[Samples], frames: int) -> Buffer:
        """Return the features of utterances in a buffer (rows, frames, mels), which has the first rows."""
        num_samples = fbank.num_samples(frames)
        rows = next_above(self._feature_rungs, len(utterances))
        samples = np.zeros((rows, num_samples), np.float32)
        for row, each in zip(samples, utterances, strict=False):
            row[: len(each)] = each[:num_samples]
        call = self._features.at((rows, num_samples))
        call.write({"samples": samples})
        self._features.run(call)
        return call.buffers["features"]


class DeviceCaches:
    """Key/value blocks and convolution contexts on the device, at addresses that its graphs know."""

    def __init__(
        self,
        device: Device,
        chunk: Computation,
        features: StaticCalls,
        shape: CacheShape,
        rungs: Sequence[int],
    ) -> None:
        self._device, self._features, self._rungs = device, features, rungs
        self._computation = _ChunkOverCaches(chunk, shape)
        self._pools = {name: device.buffer(spec) for name, spec in self._computation.pools.items()}
        self.calls = StaticCalls(device, self._computation, "chunk", self._pools)

    def prewarm(self, num_samples: int) -> None:
        """Capture a graph for each rung of chunks of so many samples."""
        self._features.prepare((rows, num_samples) for rows in self._rungs)
        self.calls.prepare((rows,) for rows in self._rungs)

    def run(self, batch: ChunkBatch) -> ChunkOutput:
        rows = next_above(self._rungs, len(batch.samples))
        features = self._features.at((rows, batch.samples.shape[1]))
        features.write({"samples": padded(batch.samples, rows)})
        with span("features"):
            self._features.run(features)
        call = self.calls.at((rows,))
        entries = self._computation.num_entries
        table = np.zeros((rows, entries), np.int64)
        table[: len(batch.block_table), : batch.block_table.shape[1]] = batch.block_table
        call.write(
            {
                "block_table": table,
                **{
                    name: padded(getattr(batch, name), rows)
                    for name in ("chunk_length", "offset", "cache_length", "context")
                },
            }
        )
        self._device.run(lambda: copy_rows(call.buffers["features"], features.buffers["features"]))
        with span("forward"):
            self.calls.run(call)
        new: dict[str, Buffer] = {}
        # The next batch may run before these are kept.
        self._device.run(lambda: new.update({name: call.buffers[name].clone() for name in NEW}))
        [log_probs] = call.read("log_probs")
        return ChunkOutput(log_probs[: len(batch.samples)], new)

    def keep(self, output: ChunkOutput, rows: Sequence[Kept]) -> None:
        blocks = [(row, block) for row, block, _ in rows if block is not None]
        contexts = [(row, context) for row, _, context in rows]

        def work() -> None:
            _scatter(self._pools["pool"], output.new["new_kv"], blocks)
            _scatter(self._pools["contexts"], output.new["new_conv_cache"], contexts)

        self._device.run(work)

    def save(self, blocks: Sequence[int], context: int) -> Any:
        saved: list[Any] = []

        def work() -> None:
            places = torch.tensor(list(blocks), dtype=torch.int64)
            pool, contexts = self._pools["pool"], self._pools["contexts"]
            saved.append(pool.index_select(0, places.to(pool.device)).cpu())
            saved.append(contexts[context].cpu())

        self._device.run(work)
        return saved

    def load(self, saved: Any, blocks: Sequence[int], context: int) -> None:
        kept, kept_context = saved

        def work() -> None:
            pool, contexts = self._pools["pool"], self._pools["contexts"]
            places = torch.tensor(list(blocks), dtype=torch.int64)
            pool.index_copy_(0, places.to(pool.device), kept.to(pool.device))
            contexts[context].copy_(kept_context)

        self._device.run(work)


class _ChunkOverCaches:
    """The chunk graph with its convolution contexts gathered by place, so that the gathering is captured too."""

    def __init__(self, chunk: Computation, shape: CacheShape) -> None:
        self._chunk = chunk
        self._wanted = chunk.inputs((1,))
        self.num_entries = self._wanted["block_table"].shape[1]
        narrow = self._wanted["pool"].dtype
        self.pools = {
            "pool": Spec((max(1, shape.num_blocks), *shape.block), narrow),
            "contexts": Spec((shape.num_contexts, *shape.context), narrow),
        }

    def inputs(self, key: Key) -> Mapping[str, Spec]:
        specs = {**self._chunk.inputs(key), **self.pools}
        return {**specs, "context": Spec((key[0],), "int64")}

    def outputs(self, key: Key) -> Mapping[str, Spec]:
        return self._chunk.outputs(key)

    def launch(self, key: Key, buffers: Mapping[str, Buffer]) -> None:
        torch.index_select(buffers["contexts"], 0, buffers["context"], out=buffers["conv_cache"])
        self._chunk.launch(key, buffers)


def padded(array: Any, rows: int) -> Any:
    """Return an array with rows of zeros below it, so many in all."""
    result = np.zeros((rows, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


def copy_rows(target: Buffer, source: Buffer) -> None:
    """Copy as many rows, and as much of their length, as both buffers have; the rest of the target becomes 0."""
    rows, length = min(len(target), len(source)), min(target.shape[1], source.shape[1])
    target.zero_()
    target[:rows, :length].copy_(source[:rows, :length])


def _scatter(pool: Buffer, rows: Buffer, places: Sequence[tuple[int, int]]) -> None:
    if not places:
        return
    sources, targets = (
        torch.tensor(numbers, dtype=torch.int64, device=pool.device)
        for numbers in zip(*places, strict=True)
    )
    pool.index_copy_(0, targets, rows.index_select(0, sources))
