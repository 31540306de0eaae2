"""Admission and batching: which requests run in this step.

Pure policy and bookkeeping: no threads, no sleeping, no audio. One thread calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request, RequestState, check_length
from oasr_backend.scheduler.cost_table import CostTable
from oasr_backend.scheduler.estimate import make_estimator
from oasr_backend.scheduler.fairness import TenantShares
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.offline import OfflineBacklog
from oasr_backend.scheduler.policies import Context
from oasr_backend.scheduler.split import split
from oasr_backend.scheduler.streaming import StreamPool


@dataclass(slots=True)
class SchedulerOutput:
    """What one step runs.

    running_streams: every admitted stream, in order of admission.
    newly_admitted: the streams admitted in this step.
    offline_batch: one batch of whole utterances, in order of arrival.
    """

    running_streams: list[Request] = field(default_factory=list)
    newly_admitted: list[Request] = field(default_factory=list)
    offline_batch: list[Request] = field(default_factory=list)


class Scheduler:
    """Holds the waiting requests and says, step by step, who goes next together with whom."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        costs: CostTable | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._ladder = Ladder(config.preferred_batch_size or (), config.max_batch_size)
        self._limits = Limits(
            self._ladder,
            config.max_batch_frames,
            config.length_bucket_ratio,
            config.max_offline_pad_ratio,
            config.fixed_window_frames,
        )
        self._estimator = make_estimator(config)
        shares = TenantShares(config.tenant_weights) if config.tenant_fairness else None
        self.costs = costs if costs is not None else CostTable()
        self._offline = OfflineBacklog(Context(config, self.costs), self._limits, shares)
        self._streams = StreamPool(config, self._ladder, shares)
        self._index: dict[str, Request] = {}

    def add_request(self, request: Request) -> None:
        """File a request; raises ValueError for an id that waits or runs already, or a request that has run."""
        if request.state is not RequestState.WAITING:
            raise ValueError(
                f"request {request.request_id!r} is {request.state.value}; only a new one can be added"
            )
        if request.request_id in self._index:
            raise ValueError(f"request id {request.request_id!r} is already waiting or running")
        if request.arrival_time is None:
            request.arrival_time = self._clock()
        request.size = self._estimator.size(request)
        self._queue_of(request).add(request)
        self._index[request.request_id] = request

    def update(self, request_id: str, num_frames: int) -> None:
        """Change a request's length, re-filing it if it waits; its place by arrival stays.

        Raises KeyError for an unknown id, ValueError for a negative length.
        """
        request = self._index[request_id]
        check_length(request_id, num_frames)

        def resize() -> None:
            request.num_frames = num_frames
            request.size = self._estimator.size(request)

        if request.state is RequestState.WAITING:
            self._queue_of(request).refile(request, resize)
        else:
            resize()
            self._streams.charge(request)

    def schedule(self) -> SchedulerOutput:
        """Decide one step: admit streams and take one offline batch off the queue."""
        now = self._clock()
        admitted = self._streams.admit(now)
        batch = self._offline.take_batch(now)
        for request in batch:
            del self._index[request.request_id]
            request.advance(RequestState.RUNNING)
        return SchedulerOutput(list(self._streams.running.values()), admitted, batch)

    def finish_request(self, request_id: str) -> Request:
        """Retire a running stream; raises KeyError for an id that is not running."""
        request = self._streams.running.pop(request_id)
        del self._index[request_id]
        request.advance(RequestState.FINISHED)
        return request

    def abort_request(self, request_id: str) -> Request | None:
        """Take a request out of whatever queue it is in; None where the id is unknown."""
        request = self._index.pop(request_id, None)
        if request is None:
            return None
        if self._streams.running.pop(request_id, None) is None:
            self._queue_of(request).remove(request)
        request.advance(RequestState.ABORTED)
        return request

    def preempt(self) -> Request | None:
        """Send one running stream back to wait, so that its memory can be freed; None where none runs.

        The victim is the longest job under "sjf", the lowest response ratio under "hrrn", else the newest of the worst
        class. Its wait starts anew.
        """
        return self._streams.preempt(self._clock())

    def find_request(self, request_id: str) -> Request | None:
        """Return the waiting or running request of that id: O(1)."""
        return self._index.get(request_id)

    def has_pending(self) -> bool:
        """Tell whether anything waits or runs."""
        return bool(self._index)

    def next_wakeup(self) -> float | None:
        """Return when work that waits now is due, in the clock's time; None where nothing waits for time."""
        now = self._clock()
        due = min(self._streams.due_at(now), self._offline.due_at(now))
        return None if due == inf else due

    def learn_output(self, language: str | None, duration_s: float, num_tokens: int) -> None:
        """Let the estimator learn what an utterance of that length gave (`adaptive_kappa`)."""
        self._estimator.learn(language, duration_s, num_tokens)

    @property
    def num_waiting(self) -> int:
        return self.num_waiting_streaming + self.num_waiting_offline

    @property
    def num_waiting_streaming(self) -> int:
        return len(self._streams.waiting)

    @property
    def num_waiting_offline(self) -> int:
        return len(self._offline)

    @property
    def num_running(self) -> int:
        return len(self._streams.running)

    @property
    def num_policy_switches(self) -> int:
        """How often "adaptive" has changed its policy."""
        return self._offline.num_switches

    def split_offline_batch(self, batch: Sequence[Request]) -> list[list[Request]]:
        """Cut a list of utterances, shortest first, into batches that respect the bounds."""
        return split(batch, self._limits)

    def _queue_of(self, request: Request) -> OfflineBacklog | StreamPool:
        return self._streams if request.streaming else self._offline
