"""The two computations that a bundle carries: whole utterances, and a batch of chunks of streams at mixed offsets.

They say what goes in and out by name and shape. They know nothing of ONNX, nor of who owns the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from oasr_backend.export.conformer import ConformerCtc
from oasr_backend.export.conformer_layers import ConformerLayer, mask_bias, sinusoids

LARGEST_FEATURE = 1e4
"""Anything that is no number below this becomes 0, so that one stream's fault cannot reach, through the pool, the next
owner of its blocks: 0 times NaN is NaN, masked or not. The logarithm of an energy stays below 100."""


Axes = Mapping[str, tuple[str | None, ...]]
"""By tensor, the name of each axis; None for one of fixed size."""


class Graph(nn.Module):
    """A computation with named inputs and outputs, in the order of its arguments and results."""

    inputs: ClassVar[Axes]
    outputs: ClassVar[Axes]


class OfflineGraph(Graph):
    """Whole utterances to log-probabilities."""

    inputs: ClassVar[Axes] = {
        "features": ("batch", "frames", None),
        "feature_lengths": ("batch",),
        "chunk_size": (),
        "num_left_chunks": (),
    }
    outputs: ClassVar[Axes] = {
        "log_probs": ("batch", "encoder_frames", None),
        "log_prob_lengths": ("batch",),
    }

    def __init__(self, model: ConformerCtc) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, features: Tensor, feature_lengths: Tensor, chunk_size: Tensor, num_left_chunks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `ConformerCtc.forward`; chunk_size and num_left_chunks are int64 scalars."""
        log_probs, lengths = self.model(features, feature_lengths, chunk_size, num_left_chunks)
        return log_probs, lengths


class ChunkGraph(Graph):
    """One chunk of each of a batch of streams, each at its own offset, over key/value blocks that they share.

    A stream's frame p lies in slot p % block of the stream's block p // block. A row of the table names, in order, the
    blocks that hold the frames offset - cache_length to offset - 1, from the first entry on; what the other entries
    name is masked. So a block may be used anew as soon as its last frame leaves the window.
    """

    inputs: ClassVar[Axes] = {
        "features": ("batch", "frames", None),
        "chunk_length": ("batch",),
        "offset": ("batch",),
        "cache_length": ("batch",),
        "block_table": ("batch", "entries"),
        "pool": ("blocks", None, "block", None),
        "conv_cache": ("batch", None, None, None),
    }
    outputs: ClassVar[Axes] = {
        "log_probs": ("batch", "chunk", None),
        "new_kv": ("batch", None, "chunk", None),
        "new_conv_cache": ("batch", None, None, None),
    }

    def __init__(self, model: ConformerCtc) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        features: Tensor,
        chunk_length: Tensor,
        offset: Tensor,
        cache_length: Tensor,
        block_table: Tensor,
        pool: Tensor,
        conv_cache: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of the chunks and what to cache of them.

        features: (batch, 4 · chunk + 3, mels) float32 before CMVN; a short last chunk is right-padded.
        chunk_length: (batch,) int64, valid encoder frames; 0 for a row that only fills the batch.
        offset: (batch,) int64, encoder frames of the stream before this chunk. At 0 the conv_cache is not looked at.
        cache_length: (batch,) int64, how many of them are visible, at most.
        block_table: (batch, entries) int64, entries ≥ 1; any number below `blocks` where nothing is cached.
        pool: (blocks, num_planes, block, plane_width) float32, finite also where nothing is cached.
        conv_cache: (batch, layers, left_context, size) float32, the new_conv_cache of the stream's last chunk.
        Returns log_probs (batch, chunk, vocabulary), new_kv (batch, num_planes, chunk, plane_width) and
        new_conv_cache like conv_cache. Frames from chunk_length on mean nothing; neither does new_conv_cache after a
        short chunk, with which a stream ends.
        """
        encoder = self.model.encoder
        features = torch.where(features.abs() < LARGEST_FEATURE, features, 0.0)
        x = encoder.embed(encoder.global_cmvn(features))
        frames = torch.arange(x.shape[1], device=x.device)
        positions = sinusoids(offset.unsqueeze(1) + frames, x.shape[2])
        bias = self._bias(block_table.shape[1] * pool.shape[2], pool.shape[2], offset, cache_length)
        bias = torch.cat([bias, mask_bias(frames < chunk_length.unsqueeze(1))], dim=1)
        is_first = (offset == 0)[:, None, None]
        planes, convs = [], []
        for index, layer in enumerate(encoder.encoders):
            assert isinstance(layer, ConformerLayer)
            past = (
                self._past(pool, block_table, 2 * index),
                self._past(pool, block_table, 2 * index + 1),
            )
            start = layer.conv_module.before_start(x.shape[0])
            past_conv = torch.where(is_first, start, conv_cache[:, index])
            x, new, conv = layer(x, positions, bias[:, None, None], None, past, past_conv)
            planes += new
            convs.append(conv)
        log_probs = self.model.ctc(encoder.after_norm(x))
        return log_probs, torch.cat(planes, dim=1), torch.stack(convs, dim=1)

    def _past(self, pool: Tensor, block_table: Tensor, index: int) -> Tensor:
        """Return the keys or the values of a layer: (batch, heads, slots, plane_width).

        Gathered head by head, they come in the order that the attention needs, without another copy.
        """
        num_heads = self.model.config.attention_heads
        heads = torch.arange(num_heads, device=pool.device) + index * num_heads
        rows = (block_table * pool.shape[1]).unsqueeze(1) + heads.unsqueeze(1)
        gathered = pool.flatten(0, 1).index_select(0, rows.flatten())
        return gathered.reshape(block_table.shape[0], num_heads, -1, pool.shape[3])

    def _bias(self, num_slots: int, block: int, offset: Tensor, cache_length: Tensor) -> Tensor:
        """Return what hides the slots that hold nothing of the row's past: (batch, num_slots)."""
        slots = torch.arange(num_slots, device=offset.device)
        first = ((offset - cache_length) % torch.full_like(offset, block)).unsqueeze(1)
        return mask_bias((slots >= first) & (slots < first + cache_length.unsqueeze(1)))
