"""What the engine counts, and where the counts go.

The table below is the whole list. It knows nothing of Triton: the sink behind `Metrics` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol


class MetricKind(Enum):
    """How a metric behaves, in Prometheus' terms."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric: its unit is in its name; `buckets` are a histogram's upper bounds."""

    kind: MetricKind
    description: str
    buckets: tuple[float, ...] = ()


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

METRICS: dict[str, MetricDefinition] = {
    "oasr_requests_total": MetricDefinition(
        MetricKind.COUNTER, "Utterances answered, by outcome: ok or the kind of error"
    ),
    "oasr_audio_seconds_total": MetricDefinition(
        MetricKind.COUNTER, "Seconds of audio transcribed and answered"
    ),
    "oasr_backlog_requests": MetricDefinition(
        MetricKind.GAUGE, "Utterances, or chunks of streams, accepted and not yet answered"
    ),
    "oasr_queue_wait_seconds": MetricDefinition(
        MetricKind.HISTOGRAM, "From acceptance to the first batch that holds it", _SECONDS
    ),
    "oasr_batch_size": MetricDefinition(
        MetricKind.HISTOGRAM,
        "Rows of one forward",
        tuple(float(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128)),
    ),
    "oasr_step_seconds": MetricDefinition(
        MetricKind.HISTOGRAM, "One forward, decoding included", _SECONDS
    ),
    "oasr_batch_cost_seconds": MetricDefinition(
        MetricKind.GAUGE,
        "What a batch is estimated to take, by its rows and the frames (10 ms) of its longest row",
    ),
    "oasr_streams": MetricDefinition(MetricKind.GAUGE, "Open streams, running or waiting"),
    "oasr_chunks_total": MetricDefinition(
        MetricKind.COUNTER, "Chunks of streams answered, by outcome: ok or the kind of error"
    ),
    "oasr_chunk_latency_seconds": MetricDefinition(
        MetricKind.HISTOGRAM,
        "From a chunk's acceptance to its answer, of chunks that complete an encoder chunk",
        _SECONDS,
    ),
    "oasr_cache_blocks": MetricDefinition(
        MetricKind.GAUGE, "Blocks of the key/value cache: used, and all there are"
    ),
    "oasr_preemptions_total": MetricDefinition(
        MetricKind.COUNTER, "Streams sent back to wait because the cache had no room"
    ),
    "oasr_graph_runs": MetricDefinition(
        MetricKind.GAUGE, "Runs on a GPU so far: replays of captured graphs, or eager without one"
    ),
}


class Metrics(Protocol):
    """Takes measurements, from any thread."""

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Add to a counter."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, name: str, value: float) -> None:
        """Record one observation of a histogram."""

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Have a gauge show what `read` returns, which may be called from any thread."""


def watch_runs(metrics: Metrics, runs: Callable[[], Mapping[str, int]]) -> None:
    """Have `oasr_graph_runs` show what `runs` tells of each kind, where it tells any."""

    def number(kind: str) -> float:
        return runs()[kind]

    for kind in runs():
        metrics.watch("oasr_graph_runs", partial(number, kind), kind=kind)


class MemoryMetrics:
    """Keeps every measurement in memory: for engines that run in process."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], float] = defaultdict(float)
        self.gauges: dict[tuple[str, ...], float] = {}
        self.observations: dict[str, list[float]] = defaultdict(list)
        self.watched: dict[tuple[str, ...], Callable[[], float]] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        self.totals[(name, *labels.values())] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self.gauges[(name, *labels.values())] = value

    def observe(self, name: str, value: float) -> None:
        self.observations[name].append(value)

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        self.watched[(name, *labels.values())] = read
