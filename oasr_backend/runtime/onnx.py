"""A bundle's graphs on the CPU, through ONNX Runtime."""

from __future__ import annotations

import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE
from oasr_backend.errors import ConfigError
from oasr_backend.runtime.base import ChunkBatch, ChunkOutput, Floats, Ints


class OnnxRuntime:
    """ONNX Runtime sessions of one bundle; each is loaded when it is first used."""

    def __init__(self, folder: Path, num_threads: int = 0) -> None:
        """Run on `num_threads` threads, 0 for one a core."""
        self._folder = folder
        self._num_threads = num_threads
        self._sessions: dict[str, Any] = {}
        self._loading = threading.Lock()

    def features(self, samples: Floats) -> Floats:
        features: Floats
        [features] = self._session(FEATURES_FILE).run(["features"], {"samples": samples})
        return features

    def encode(
        self, features: Floats, lengths: Ints, chunk_size: int, num_left_chunks: int
    ) -> tuple[Floats, Ints]:
        inputs = {
            "features": features,
            "feature_lengths": lengths,
            "chunk_size": np.array(chunk_size, np.int64),
            "num_left_chunks": np.array(num_left_chunks, np.int64),
        }
        log_probs, log_prob_lengths = self._session(ENCODER_FILE).run(
            ["log_probs", "log_prob_lengths"], inputs
        )
        return log_probs, log_prob_lengths

    def encode_chunks(self, batch: ChunkBatch) -> ChunkOutput:
        inputs = {field.name: getattr(batch, field.name) for field in fields(batch)}
        inputs["features"] = self.features(inputs.pop("samples"))
        names = [field.name for field in fields(ChunkOutput)]
        return ChunkOutput(*self._session(CHUNK_FILE).run(names, inputs))

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
            return onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ConfigError(
                f"{path} cannot be loaded ({error}): export the bundle again with scripts/export_wenet.py"
            ) from error
