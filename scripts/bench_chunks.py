#!/usr/bin/env python3
"""Measure a bundle's `chunk.onnx` in ONNX Runtime: milliseconds a stream and chunk, by how many share a forward.

.venv/bin/python scripts/bench_chunks.py models/u2pp --batch-sizes 1 4 16 32
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from oasr_backend.bundle import CHUNK_FILE, Bundle, StreamingSettings, read_bundle


def main() -> None:
    options = parse_arguments()
    bundle = read_bundle(options.bundle)
    assert bundle.streaming, "the bundle has no chunk.onnx"
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(
        str(options.bundle / CHUNK_FILE), threads, providers=["CPUExecutionProvider"]
    )
    print(
        f"{options.threads} threads, chunks of {bundle.streaming.chunk_size} encoder frames, ",
        end="",
    )
    print(f"{options.rounds} rounds; milliseconds a stream and chunk")
    print(f"{'streams':>7} {'best':>8} {'median':>8} {'CPU':>8}")
    for batch_size in options.batch_sizes:
        inputs = random_inputs(bundle, bundle.streaming, batch_size, options.spare_blocks)
        best, middle, cpu = measure(session, inputs, options.rounds)
        per_stream = [f"{seconds * 1e3 / batch_size:8.2f}" for seconds in (best, middle, cpu)]
        print(f"{batch_size:>7}", *per_stream)


def measure(session: Any, inputs: dict[str, Any], rounds: int) -> tuple[float, float, float]:
    """Return the best and the median wall time, and the mean CPU time, of a forward in seconds."""
    for _ in range(3):
        session.run(None, inputs)
    walls = []
    cpu_start = time.process_time()
    for _ in range(rounds):
        start = time.perf_counter()
        session.run(None, inputs)
        walls.append(time.perf_counter() - start)
    return min(walls), median(walls), (time.process_time() - cpu_start) / rounds


def random_inputs(
    bundle: Bundle, settings: StreamingSettings, num_streams: int, num_spare_blocks: int
) -> dict[str, Any]:
    """Return a batch of streams whose past is full, each at its own offset, in blocks of one chunk."""
    size, entries = settings.chunk_size, max(settings.num_left_chunks, 1)
    num_blocks = num_streams * entries + num_spare_blocks
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "features": floats(num_streams, bundle.chunk_frames(size), bundle.features.num_mels),
        "chunk_length": np.full(num_streams, size),
        "offset": (np.arange(num_streams) + entries) * size,
        "cache_length": np.full(num_streams, entries * size),
        "block_table": rng.permutation(num_blocks)[: num_streams * entries].reshape(-1, entries),
        "pool": floats(num_blocks, settings.num_planes, size, settings.plane_width),
        "conv_cache": floats(
            num_streams, settings.conv_layers, settings.conv_frames, settings.conv_size
        ),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--spare-blocks", type=int, default=0, help="blocks of other streams")
    return parser.parse_args()


if __name__ == "__main__":
    main()
