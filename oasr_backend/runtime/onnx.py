"""A bundle's graphs through ONNX Runtime: on the CPU, or on a GPU with its CUDA provider."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE
from oasr_backend.cores import num_cores
from oasr_backend.errors import ConfigError
from oasr_backend.runtime.base import CacheShape, Floats, Ints
from oasr_backend.runtime.host_caches import HostCaches
from oasr_backend.spans import span

CHUNK_OUTPUTS = ("log_probs", "new_kv", "new_conv_cache")


class OnnxRuntime:
    """ONNX Runtime sessions of one bundle; each is loaded when it is first used."""

    buckets_frames: tuple[int, ...] = ()

    def __init__(self, folder: Path, num_threads: int = 0, on_gpu: bool = False) -> None:
        """Run each batch on `num_threads` threads, 0 for one a core, or on the first GPU."""
        self._providers = ["CUDAExecutionProvider"] * on_gpu + ["CPUExecutionProvider"]
        self.parallel_batches = max(1, num_cores() // (num_threads or num_cores()))
        if on_gpu:
            self.parallel_batches = 1
        self._folder = folder
        self._num_threads = num_threads
        self._sessions: dict[str, Any] = {}
        self._loading = threading.Lock()

    def features(self, samples: Floats) -> Floats:
        """Return features (batch, frames, mels) of (batch, samples) in ±1 at 16 kHz, 400 of them at least."""
        features: Floats
        [features] = self._session(FEATURES_FILE).run(["features"], {"samples": samples})
        return features

    def encode(
        self, utterances: Sequence[Floats], chunk_size: int, num_left_chunks: int
    ) -> tuple[Floats, Ints]:
        with span("features"):
            padded = self._padded_features(utterances)
        inputs = {
            **padded,
            "chunk_size": np.array(chunk_size, np.int64),
            "num_left_chunks": np.array(num_left_chunks, np.int64),
        }
        with span("forward"):
            log_probs, log_prob_lengths = self._session(ENCODER_FILE).run(
                ["log_probs", "log_prob_lengths"], inputs
            )
        return log_probs, log_prob_lengths

    def _padded_features(self, utterances: Sequence[Floats]) -> dict[str, Floats | Ints]:
        """Return each utterance's own features, one below the other: no padding is transformed."""
        rows = [self.features(samples[np.newaxis])[0] for samples in utterances]
        lengths = np.array([len(row) for row in rows], np.int64)
        if len(rows) == 1:
            return {"features": rows[0][np.newaxis], "feature_lengths": lengths}
        features = np.zeros((len(rows), lengths.max(), rows[0].shape[1]), np.float32)
        for target, row in zip(features, rows, strict=True):
            target[: len(row)] = row
        return {"features": features, "feature_lengths": lengths}

    def caches(self, shape: CacheShape) -> HostCaches:
        return HostCaches(shape, self._run_chunks)

    def runs(self) -> dict[str, int]:
        return {}

    def _run_chunks(
        self, samples: Floats, others: Mapping[str, Floats | Ints]
    ) -> tuple[Floats, Floats, Floats]:
        with span("features"):
            features = self.features(samples)
        with span("forward"):
            log_probs, new_kv, new_conv_cache = self._session(CHUNK_FILE).run(
                CHUNK_OUTPUTS, {"features": features, **others}
            )
        return log_probs, new_kv, new_conv_cache

    def _session(self, name: str) -> Any:
        with self._loading:
            if name not in self._sessions:
                self._sessions[name] = self._load(self._folder / name)
            return self._sessions[name]

    def _load(self, path: Path) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Idle threads must not spin: the cores are the load generator's and Triton's too.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=self._providers)
        except Exception as error:
            raise ConfigError(
                f"{path} cannot be loaded ({error}): export the bundle again with scripts/export_wenet.py"
            ) from error
