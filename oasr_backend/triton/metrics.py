"""The engine's measurements on Triton's metrics port. It knows nothing of what they mean."""

from __future__ import annotations

from typing import Any

from oasr_backend.engine.metrics import METRICS, MetricKind


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
        self._metrics: dict[tuple[str, ...], Any] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        self._metric(name, labels).increment(amount)

    def set(self, name: str, value: float) -> None:
        self._metric(name, {}).set(value)

    def observe(self, name: str, value: float) -> None:
        self._metric(name, {}).observe(value)

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        key = (name, *labels.values())
        if key not in self._metrics:
            definition = METRICS[name]
            options: dict[str, Any] = {"labels": {"model": self._model_name, **labels}}
            if definition.kind is MetricKind.HISTOGRAM:
                options["buckets"] = list(definition.buckets)
            self._metrics[key] = self._families[name].Metric(**options)
        return self._metrics[key]
