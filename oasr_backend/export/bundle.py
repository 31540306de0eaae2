"""Making a bundle of a checkpoint: the graphs, each checked against PyTorch, and what serving must know of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from oasr_backend.bundle import (
    CHUNK_FILE,
    ENCODER_FILE,
    FEATURES_FILE,
    Bundle,
    StreamingSettings,
    write_bundle,
)
from oasr_backend.errors import ConfigError
from oasr_backend.export.conformer_config import CONTEXT_FRAMES, SUBSAMPLING, ConformerConfig
from oasr_backend.export.features import FbankGraph
from oasr_backend.export.graphs import ChunkGraph, OfflineGraph
from oasr_backend.export.onnx_file import check_graph, export_graph
from oasr_backend.export.wenet import Checkpoint

FULL_CONTEXT = (0, -1)

FEATURE_TOLERANCE = 1e-3
"""Of logarithms: where a filter hears nearly nothing, rounding is a greater part of it."""


def export_bundle(
    checkpoint: Checkpoint,
    folder: Path,
    chunk_size: int | None = None,
    num_left_chunks: int = 4,
    streaming: bool = True,
) -> dict[str, float]:
    """Write a bundle; return the largest difference of each graph to PyTorch.

    chunk_size: encoder frames of a chunk that serving should use; None for that of the training, else 16.
    num_left_chunks: chunks of the past that it should keep; negative for all.
    streaming: False to leave out `chunk.onnx`.
    Raises ConfigError where the model cannot stream, ExportError where a graph computes something else. Files of an
    earlier export are replaced only once everything is right.
    """
    config = checkpoint.model.config
    chunk_size = chunk_size or config.static_chunk_size or 16
    settings = streaming_settings(config, chunk_size, num_left_chunks) if streaming else None
    static = 0 if config.use_dynamic_chunk else config.static_chunk_size
    bundle = Bundle(
        checkpoint.tokens,
        checkpoint.features,
        settings,
        checkpoint.blank_id,
        checkpoint.token_separator,
        offline_chunk_size=static,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".export-") as name:
        made = Path(name)
        num_mels = checkpoint.features.num_mels
        differences = {
            FEATURES_FILE: export_features(num_mels, made / FEATURES_FILE),
            ENCODER_FILE: export_offline(checkpoint, made / ENCODER_FILE, chunk_size),
        }
        if settings:
            differences[CHUNK_FILE] = export_chunk(checkpoint, made / CHUNK_FILE, settings)
        write_bundle(made, bundle)
        (folder / CHUNK_FILE).unlink(missing_ok=True)
        for path in sorted(made.iterdir()):
            path.replace(folder / path.name)
    return differences


def export_features(num_mels: int, path: Path) -> float:
    """Write and check the graph of the features; return its difference to PyTorch."""
    graph = FbankGraph(num_mels)
    cases = [{"samples": 0.1 * torch.randn(rows, length)} for rows, length in ((1, 400), (3, 5000))]
    export_graph(graph, cases[1], path)
    return check_graph(graph, path, cases, FEATURE_TOLERANCE)


def export_offline(checkpoint: Checkpoint, path: Path, chunk_size: int) -> float:
    """Write and check the graph for whole utterances; return its difference to PyTorch."""
    graph = OfflineGraph(checkpoint.model)
    num_mels = checkpoint.features.num_mels
    export_graph(graph, _offline_case((71, 39), num_mels, (4, 2)), path)
    cases = [
        _offline_case((203, 131, 0), num_mels, FULL_CONTEXT),
        _offline_case((55, 300), num_mels, (chunk_size, 1)),
        _offline_case((7,), num_mels, (chunk_size, -1)),
    ]
    return check_graph(graph, path, cases)


def export_chunk(checkpoint: Checkpoint, path: Path, settings: StreamingSettings) -> float:
    """Write and check the graph for a batch of chunks; return its difference to PyTorch."""
    graph, config = ChunkGraph(checkpoint.model), checkpoint.model.config
    export_graph(graph, _chunk_case(config, [(0, 0), (9, 7)], 5, 4, 3), path)
    size, entries = settings.chunk_size, 1 + max(settings.num_left_chunks, 2)
    cases = [
        _chunk_case(config, [(0, 0)], size, size, 1),
        _chunk_case(config, [(0, 0), (size, size), (9 * size, 2 * size)], size, size, entries),
        _chunk_case(config, [(41, 23), (3, 3)], 2 * size, 16, 3),
    ]
    return check_graph(graph, path, cases)


def streaming_settings(
    config: ConformerConfig, chunk_size: int, num_left_chunks: int
) -> StreamingSettings:
    if not config.causal:
        raise ConfigError(
            "train.yaml: encoder_conf.causal is False, and a symmetric convolution needs frames that a stream has not "
            "heard yet: export with --offline-only"
        )
    if not (config.use_dynamic_chunk or config.static_chunk_size > 0):
        raise ConfigError(
            "train.yaml: encoder_conf.use_dynamic_chunk is False and there is no static_chunk_size, so the model was "
            "trained on whole utterances only: export with --offline-only"
        )
    return StreamingSettings(
        num_planes=config.num_planes,
        plane_width=config.plane_width,
        conv_layers=config.num_blocks,
        conv_frames=config.left_context,
        conv_size=config.output_size,
        chunk_size=chunk_size,
        num_left_chunks=num_left_chunks,
    )


def _offline_case(
    lengths: tuple[int, ...], num_mels: int, chunks: tuple[int, int]
) -> Mapping[str, Tensor]:
    return {
        "features": _random(len(lengths), max(lengths), num_mels),
        "feature_lengths": torch.tensor(lengths),
        "chunk_size": torch.tensor(chunks[0]),
        "num_left_chunks": torch.tensor(chunks[1]),
    }


def _chunk_case(
    config: ConformerConfig,
    streams: list[tuple[int, int]],
    chunk_size: int,
    block: int,
    entries: int,
) -> Mapping[str, Tensor]:
    """Return the inputs of a batch; streams: (offset, cache_length) of each, which must fit in the entries."""
    num_streams = len(streams)
    num_blocks = num_streams * entries + 1
    offsets, cache_lengths = zip(*streams, strict=True)
    lengths = [chunk_size - row % 2 for row in range(num_streams)]
    frames = (chunk_size - 1) * SUBSAMPLING + CONTEXT_FRAMES
    return {
        "features": _random(num_streams, frames, config.input_size),
        "chunk_length": torch.tensor(lengths),
        "offset": torch.tensor(offsets),
        "cache_length": torch.tensor(cache_lengths),
        "block_table": (num_blocks - 1 - torch.arange(num_streams * entries)).reshape(-1, entries),
        "pool": _random(num_blocks, config.num_planes, block, config.plane_width),
        "conv_cache": _random(
            num_streams, config.num_blocks, config.left_context, config.output_size
        ),
    }


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)
