"""The engine's measurements on Triton's metrics port. It knows nothing of what they mean."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any

from oasr_backend.engine.metrics import METRICS, MetricKind

log = logging.getLogger(__name__)

Key = tuple[Any, ...]
"""A metric's name, then its labels as (name, value) pairs."""

PUBLISH_EVERY_S = 0.5
"""Every number that is published crosses to Triton's process, and no other thread of Python runs meanwhile: half a
millisecond on a busy machine. So they are gathered, and none is published that says nothing new."""


@dataclass(slots=True)
class _Taken:
    """Measurements that are not published yet."""

    amounts: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    values: dict[Key, float] = field(default_factory=dict)
    observations: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class TritonMetrics:
    """Sends measurements to Triton through the Python backend's custom metrics, labelled with the model.

    A histogram is sent as the counters of which Prometheus makes one (`_bucket` by `le`, `_sum`, `_count`): what it has
    gathered then crosses at once, where Triton's own takes each observation alone.
    """

    def __init__(self, pb_utils: Any, model_name: str) -> None:
        self._model_name = model_name
        self._families = {
            name: pb_utils.MetricFamily(
                name=name, description=description, kind=getattr(pb_utils.MetricFamily, kind.name)
            )
            for name, kind, description in _families()
        }
        self._metrics: dict[Key, Any] = {}
        self._shown: dict[Key, float] = {}
        self._watched: dict[Key, Callable[[], float]] = {}
        self._lock = threading.Lock()
        self._taken = _Taken()
        self._has_news = threading.Event()
        self._closing = threading.Event()
        self._publisher = threading.Thread(target=self._run, name="oasr-metrics", daemon=True)
        self._publisher.start()

    def add(self, name: str, amount: float, **labels: str) -> None:
        with self._lock:
            self._taken.amounts[(name, *labels.items())] += amount
        self._tell()

    def set(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._taken.values[(name, *labels.items())] = value
        self._tell()

    def observe(self, name: str, value: float) -> None:
        with self._lock:
            self._taken.observations[name].append(value)
        self._tell()

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        with self._lock:
            self._watched[(name, *labels.items())] = read
        self._tell()

    def close(self) -> None:
        """Return once everything is published."""
        self._closing.set()
        self._has_news.set()
        self._publisher.join()

    def _tell(self) -> None:
        if not self._has_news.is_set():  # setting it anew takes longer than the rest
            self._has_news.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            # What is watched changes without a word while there is work.
            is_idle = not any(self._shown.get(key) for key in self._watched)
            self._has_news.wait(None if is_idle else PUBLISH_EVERY_S)
            self._has_news.clear()
            self._closing.wait(PUBLISH_EVERY_S)
            self._publish()

    def _publish(self) -> None:
        with self._lock:
            taken, self._taken = self._taken, _Taken()
            watched = dict(self._watched)
        try:
            for name, observations in taken.observations.items():
                taken.amounts.update(_series(name, observations))
            for key, amount in taken.amounts.items():
                self._add(key, amount)
            for key, value in (
                taken.values | {key: read() for key, read in watched.items()}
            ).items():
                self._show(key, value)
        except Exception:
            log.exception("metrics could not be published")

    def _add(self, key: Key, amount: float) -> None:
        if amount or key not in self._metrics:
            self._metric(key).increment(amount)

    def _show(self, key: Key, value: float) -> None:
        if self._shown.get(key) != value:
            self._metric(key).set(value)
            self._shown[key] = value

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            name, *labels = key
            labels_by_name = {"model": self._model_name, **dict(labels)}
            self._metrics[key] = self._families[name].Metric(labels=labels_by_name)
        return self._metrics[key]


def _families() -> Iterator[tuple[str, MetricKind, str]]:
    """Yield what Triton is told of each metric: its name, its kind, and what it is."""
    for name, definition in METRICS.items():
        if definition.kind is MetricKind.HISTOGRAM:
            for part in ("bucket", "sum", "count"):
                yield f"{name}_{part}", MetricKind.COUNTER, definition.description
        else:
            yield name, definition.kind, definition.description


def _series(name: str, observations: Sequence[float]) -> dict[Key, float]:
    """Return what observations add to each series of a histogram, whose buckets count all up to their bound."""
    bounds = (*METRICS[name].buckets, inf)
    counts = [0] * len(bounds)
    for value in observations:
        counts[bisect_left(bounds, value)] += 1
    buckets: dict[Key, float] = {
        (f"{name}_bucket", ("le", _bound(bound))): count
        for bound, count in zip(bounds, accumulate(counts), strict=True)
    }
    return {**buckets, (f"{name}_sum",): sum(observations), (f"{name}_count",): len(observations)}


def _bound(bound: float) -> str:
    return "+Inf" if bound == inf else f"{bound:g}"
