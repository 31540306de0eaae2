"""The same weights as sherpa-onnx reads a WeNet CTC model: `model.onnx`, `model-streaming.onnx`, `tokens.txt`.

Names, shapes and metadata are those that sherpa-onnx asks for (`offline-wenet-ctc-model.cc`,
`online-wenet-ctc-model.cc`). It streams one stream a forward. Its `offset` starts at the size of the cache; positions
here start at 0 all the same, as they do in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from oasr_backend.bundle import StreamingSettings, write_tokens
from oasr_backend.export.conformer import SUBSAMPLING, ConformerCtc
from oasr_backend.export.conformer_config import CONTEXT_FRAMES, ConformerConfig
from oasr_backend.export.conformer_layers import (
    Attention,
    ConformerLayer,
    KeysAndValues,
    mask_bias,
    sinusoids,
)
from oasr_backend.export.graphs import Axes, Graph
from oasr_backend.export.onnx_file import check_graph, export_graph, set_metadata
from oasr_backend.export.wenet import Checkpoint

OFFLINE_FILE, STREAMING_FILE, TOKENS_FILE = "model.onnx", "model-streaming.onnx", "tokens.txt"


class SherpaOfflineGraph(Graph):
    """Whole utterances, under sherpa-onnx's names."""

    inputs: ClassVar[Axes] = {"x": ("N", "T", None), "x_lens": ("N",)}
    outputs: ClassVar[Axes] = {"log_probs": ("N", "T_out", None), "log_probs_lens": ("N",)}

    def __init__(self, model: ConformerCtc) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and lengths of x (N, T, mels) before CMVN and x_lens (N,) int64."""
        config = self.model.config
        chunk_size = 0 if config.use_dynamic_chunk else config.static_chunk_size
        log_probs, lengths = self.model(x, x_lens, chunk_size)
        return log_probs, lengths


class SherpaStreamingGraph(Graph):
    """One chunk of one stream, under sherpa-onnx's names."""

    inputs: ClassVar[Axes] = {
        "x": (None, "T", None),
        "offset": (None,),
        "required_cache_size": (None,),
        "attn_cache": (None, None, "cache", None),
        "conv_cache": (None, None, None, None),
        "attn_mask": (None, None, "seen"),
    }
    outputs: ClassVar[Axes] = {
        "log_probs": (None, "chunk", None),
        "next_att_cache": (None, None, "cache", None),
        "next_conv_cache": (None, None, None, None),
    }

    def __init__(self, model: ConformerCtc) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Tensor,
        offset: Tensor,
        required_cache_size: Tensor,
        attn_cache: Tensor,
        conv_cache: Tensor,
        attn_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities and the caches for the next chunk.

        x: (1, 4 · chunk + 3, mels) before CMVN.
        offset: (1,) int64, required_cache_size plus the encoder frames before this chunk.
        attn_cache: (layers, heads, cache, 2 · head size): keys with their position, then values; 0 at the start.
        conv_cache: (layers, 1, size, left context), less what lies before a start; so 0 at the start.
        attn_mask: (1, 1, cache + chunk) bool, True where there is something to see.
        """
        encoder, num_cached = self.model.encoder, attn_cache.shape[2]
        x = encoder.embed(encoder.global_cmvn(x))
        frames = torch.arange(num_cached + x.shape[1], device=x.device)
        first = offset - required_cache_size - num_cached
        positions = sinusoids((first + frames).unsqueeze(0), x.shape[2])
        bias = mask_bias(attn_mask).unsqueeze(1)
        att_caches, conv_caches = [], []
        for index, layer in enumerate(encoder.encoders):
            assert isinstance(layer, ConformerLayer)
            cached = attn_cache[index].unsqueeze(0)
            past = _restored(layer.self_attn, cached, positions[:, :num_cached])
            start = layer.conv_module.before_start(1)
            conv = conv_cache[index].transpose(1, 2) + start
            x, new, conv = layer(x, positions[:, num_cached:], bias, None, past, conv)
            stored = torch.cat([part[..., :-1] for part in new], dim=-1)
            att_caches.append(torch.cat([cached, stored], dim=2)[:, :, -num_cached:])
            conv_caches.append((conv - start).transpose(1, 2))
        log_probs = self.model.ctc(encoder.after_norm(x))
        return log_probs, torch.cat(att_caches), torch.stack(conv_caches)


def _restored(attention: Attention, cached: Tensor, positions: Tensor) -> KeysAndValues:
    """Return keys and values as `Attention` made them, of what fits into sherpa-onnx's cache.

    It has no room for the score bias u·k + v·p of a key, which is u·(k + p) + (v - u)·p.
    """
    keys, values = cached.chunk(2, dim=-1)
    places = attention.linear_pos(positions).unflatten(-1, attention.heads).transpose(1, 2)
    u, v = attention.pos_bias_u.unsqueeze(1), attention.pos_bias_v.unsqueeze(1)
    bias = (keys * u + places * (v - u)).sum(-1, keepdim=True)
    return torch.cat([keys, bias], dim=-1), torch.nn.functional.pad(values, (0, 1))


def export_sherpa(
    checkpoint: Checkpoint, folder: Path, settings: StreamingSettings | None
) -> dict[str, float]:
    """Write sherpa-onnx's files; return the largest difference of each graph to PyTorch. Raises ExportError.

    settings: of the streaming model's chunks, which sherpa-onnx must be started with; None for no streaming model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = checkpoint.model.config
    common = {
        "model_type": "wenet_ctc",
        "version": "1",
        "model_author": "wenet",
        "subsampling_factor": SUBSAMPLING,
        "vocab_size": config.vocabulary_size,
    }
    offline, path = SherpaOfflineGraph(checkpoint.model), folder / OFFLINE_FILE
    export_graph(offline, _offline_case(config, (71, 39)), path)
    set_metadata(path, {**common, "comment": "non-streaming"})
    differences = {path.name: check_graph(offline, path, [_offline_case(config, (55, 203))])}
    if settings:
        streaming, path = SherpaStreamingGraph(checkpoint.model), folder / STREAMING_FILE
        export_graph(streaming, _streaming_case(config, 5, 2, 3), path)
        set_metadata(path, {**common, **_streaming_metadata(config, settings)})
        case = _streaming_case(config, settings.chunk_size, max(settings.num_left_chunks, 1), 7)
        differences[path.name] = check_graph(streaming, path, [case])
    write_tokens(folder / TOKENS_FILE, checkpoint.tokens)
    return differences


def _streaming_metadata(
    config: ConformerConfig, settings: StreamingSettings
) -> Mapping[str, object]:
    return {
        "comment": "streaming",
        "chunk_size": settings.chunk_size,
        "left_chunks": settings.num_left_chunks,
        "head": config.attention_heads,
        "num_blocks": config.num_blocks,
        "output_size": config.output_size,
        "cnn_module_kernel": config.cnn_module_kernel,
        "right_context": CONTEXT_FRAMES - 1,
    }


def _offline_case(config: ConformerConfig, lengths: tuple[int, int]) -> Mapping[str, Tensor]:
    return {"x": torch.randn(2, max(lengths), config.input_size), "x_lens": torch.tensor(lengths)}


def _streaming_case(
    config: ConformerConfig, chunk_size: int, num_left_chunks: int, num_before: int
) -> Mapping[str, Tensor]:
    cache = chunk_size * num_left_chunks
    frames = (chunk_size - 1) * SUBSAMPLING + CONTEXT_FRAMES
    heads, layers = config.attention_heads, config.num_blocks
    return {
        "x": torch.randn(1, frames, config.input_size),
        "offset": torch.tensor([cache + num_before]),
        "required_cache_size": torch.tensor([cache]),
        "attn_cache": torch.randn(layers, heads, cache, 2 * config.head_size),
        "conv_cache": torch.randn(layers, 1, config.output_size, config.left_context),
        "attn_mask": (torch.arange(cache + chunk_size) >= cache - num_before)[None, None],
    }
