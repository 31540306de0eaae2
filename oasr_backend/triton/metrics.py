"""The engine's measurements on Triton's metrics port. It knows nothing of what they mean."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from oasr_backend.engine.metrics import METRICS, MetricKind

Key = tuple[Any, ...]
"""A metric's name, then its labels as (name, value) pairs."""


class TritonMetrics:
    """Sends measurements to Triton through the Python backend's custom metrics, labelled with the model."""

    def __init__(self, pb_utils: Any, model_name: str) -> None:
        self._model_name = model_name
        self._families = {
            name: pb_utils.MetricFamily(
                name=name,
                description=definition.description,
                kind=getattr(pb_utils.MetricFamily, definition.kind.name),
            )
            for name, definition in METRICS.items()
        }
        self._metrics: dict[Key, Any] = {}
        self._lock = threading.Lock()
        # Each call crosses to Triton's process: 0.1 ms that is paid between steps, and once for many requests.
        self._amounts: dict[Key, float] = defaultdict(float)
        self._values: dict[Key, float] = {}
        self._observations: list[tuple[str, float]] = []

    def add(self, name: str, amount: float, **labels: str) -> None:
        self._amounts[(name, *labels.items())] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self._values[(name, *labels.items())] = value

    def observe(self, name: str, value: float) -> None:
        self._observations.append((name, value))

    def add_now(self, name: str, amount: float, **labels: str) -> None:
        """Add to a counter at once; from any thread."""
        self._metric((name, *labels.items())).increment(amount)

    def set_now(self, name: str, value: float) -> None:
        """Set a gauge at once; from any thread."""
        self._metric((name,)).set(value)

    def flush(self) -> None:
        for key, amount in self._amounts.items():
            self._metric(key).increment(amount)
        for key, value in self._values.items():
            self._metric(key).set(value)
        for name, value in self._observations:
            self._metric((name,)).observe(value)
        self._amounts.clear()
        self._values.clear()
        self._observations.clear()

    def _metric(self, key: Key) -> Any:
        with self._lock:
            if key not in self._metrics:
                self._metrics[key] = self._make(key)
            return self._metrics[key]

    def _make(self, key: Key) -> Any:
        name, *labels = key
        options: dict[str, Any] = {"labels": {"model": self._model_name, **dict(labels)}}
        if METRICS[name].kind is MetricKind.HISTOGRAM:
            options["buckets"] = list(METRICS[name].buckets)
        return self._families[name].Metric(**options)
