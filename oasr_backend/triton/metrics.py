"""The engine's measurements on Triton's metrics port. It knows nothing of what they mean."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from oasr_backend.engine.metrics import METRICS, MetricKind

log = logging.getLogger(__name__)

Key = tuple[Any, ...]
"""A metric's name, then its labels as (name, value) pairs."""


@dataclass(slots=True)
class _Taken:
    """Measurements since the last flush."""

    amounts: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    values: dict[Key, float] = field(default_factory=dict)
    observations: list[tuple[str, float]] = field(default_factory=list)


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
        self._taken = _Taken()
        # Each call crosses to Triton's process, 0.1 ms and more on a busy machine: a thread of its own waits for it.
        self._publisher = ThreadPoolExecutor(1, thread_name_prefix="oasr-metrics")

    def add(self, name: str, amount: float, **labels: str) -> None:
        self._taken.amounts[(name, *labels.items())] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self._taken.values[(name, *labels.items())] = value

    def observe(self, name: str, value: float) -> None:
        self._taken.observations.append((name, value))

    def add_now(self, name: str, amount: float, **labels: str) -> None:
        """Add to a counter at once; from any thread."""
        self._metric((name, *labels.items())).increment(amount)

    def set_now(self, name: str, value: float) -> None:
        """Set a gauge at once; from any thread."""
        self._metric((name,)).set(value)

    def flush(self) -> None:
        taken, self._taken = self._taken, _Taken()
        self._publisher.submit(self._publish, taken)

    def close(self) -> None:
        """Return once everything is published."""
        self._publisher.shutdown()

    def _publish(self, taken: _Taken) -> None:
        try:
            for key, amount in taken.amounts.items():
                self._metric(key).increment(amount)
            for key, value in taken.values.items():
                self._metric(key).set(value)
            for name, value in taken.observations:
                self._metric((name,)).observe(value)
        except Exception:
            log.exception("metrics could not be published")

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
