"""Admission and batching: which requests run in this step.

Pure policy and bookkeeping: no threads, no sleeping, no audio. One thread calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request, RequestState
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.limits import Limits
from oasr_backend.scheduler.policies import fill_in_order, make_policy
from oasr_backend.scheduler.queue import WaitingQueue


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

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._ladder = Ladder(config.preferred_batch_size or (), config.max_batch_size)
        self._limits = Limits(self._ladder, config.max_batch_frames, config.fixed_window_frames)
        self._policy = make_policy(config.schedule_policy)
        self._offline_waiting = WaitingQueue(config.max_wait_time)
        self._streaming_waiting = WaitingQueue(config.max_wait_time)
        self._running: dict[str, Request] = {}
        self._index: dict[str, Request] = {}
        self._next_stream_id = 0

    def add_request(self, request: Request) -> None:
        """File a request; raises ValueError for an id that waits or runs already."""
        if request.request_id in self._index:
            raise ValueError(f"request id {request.request_id!r} is already waiting or running")
        if request.arrival_time is None:
            request.arrival_time = self._clock()
        self._index[request.request_id] = request
        self._queue_of(request).add(request)

    def schedule(self) -> SchedulerOutput:
        """Decide one step: admit streams and take one offline batch off the queue."""
        now = self._clock()
        admitted = self._admit_streaming(now)
        batch = self._build_offline_batch(now)
        return SchedulerOutput(list(self._running.values()), admitted, batch)

    def finish_request(self, request_id: str) -> Request:
        """Retire a running stream; raises KeyError for an id that is not running."""
        request = self._running.pop(request_id)
        del self._index[request_id]
        request.advance(RequestState.FINISHED)
        return request

    def abort_request(self, request_id: str) -> Request | None:
        """Take a request out of whatever queue it is in; None where the id is unknown."""
        request = self._index.pop(request_id, None)
        if request is None:
            return None
        if self._running.pop(request_id, None) is None:
            self._queue_of(request).remove(request)
        request.advance(RequestState.ABORTED)
        return request

    def find_request(self, request_id: str) -> Request | None:
        """Return the waiting or running request of that id: O(1)."""
        return self._index.get(request_id)

    def has_pending(self) -> bool:
        """Tell whether anything waits or runs."""
        return bool(self._index)

    def next_wakeup(self) -> float | None:
        """Return when work that waits now is due, in the clock's time; None where nothing waits for time."""
        now = self._clock()
        return min(self._due_times(now), default=None)

    @property
    def num_waiting(self) -> int:
        return self.num_waiting_streaming + self.num_waiting_offline

    @property
    def num_waiting_streaming(self) -> int:
        return len(self._streaming_waiting)

    @property
    def num_waiting_offline(self) -> int:
        return len(self._offline_waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def split_offline_batch(self, batch: Sequence[Request]) -> list[list[Request]]:
        """Cut a list of utterances, shortest first, into batches that respect the bounds."""
        rest = sorted(batch, key=lambda r: (r.num_frames, r.arrived, r.request_id))
        parts: list[list[Request]] = []
        while rest:
            size = self._part_size(rest, len(parts), len(batch))
            parts.append(rest[:size])
            rest = rest[size:]
        return parts

    def _part_size(self, rest: list[Request], num_parts_done: int, num_requests: int) -> int:
        if self._limits.max_batch_frames is not None:
            size = 1
            while size < len(rest) and self._limits.fits(
                size + 1, self._limits.padded_frames(rest[size])
            ):
                size += 1
            return size
        if self._ladder.sizes:
            return self._ladder.largest_up_to(len(rest)) or len(rest)
        num_parts = -(-num_requests // self._ladder.cap)
        return -(-len(rest) // (num_parts - num_parts_done))

    def _queue_of(self, request: Request) -> WaitingQueue:
        return self._streaming_waiting if request.streaming else self._offline_waiting

    def _due_times(self, now: float) -> Iterator[float]:
        for queue, num_missing in (
            (self._offline_waiting, self._ladder.smallest - self.num_waiting_offline),
            (self._streaming_waiting, self._num_streams_missing()),
        ):
            oldest = queue.oldest()
            if oldest is None or num_missing == inf:
                continue
            due = oldest.arrived + self._config.max_wait_time
            if num_missing <= 0:
                yield now
            elif due < inf:
                yield due

    def _num_streams_missing(self) -> float:
        """Return how many streams must still come before some are admitted; inf if none can be."""
        free = self._num_free_slots()
        if free <= 0:
            return inf
        return 0 if self._num_admissible(min(free, self.num_waiting_streaming)) else 1

    def _num_free_slots(self) -> int:
        return self._config.max_batch_size - len(self._running)

    def _num_admissible(self, num_available: int) -> int:
        target = self._ladder.largest_up_to(len(self._running) + num_available)
        return max(0, target - len(self._running))

    def _admit_streaming(self, now: float) -> list[Request]:
        waiting = self._streaming_waiting
        num_available = min(self._num_free_slots(), len(waiting))
        if num_available <= 0:
            return []
        num_admitted = self._num_admissible(num_available)
        oldest = waiting.oldest()
        assert oldest is not None
        if num_admitted == 0 and waiting.is_overdue(oldest, now):
            num_admitted = num_available
        admitted = [r for r, _ in zip(waiting.in_order(now), range(num_admitted), strict=False)]
        for request in admitted:
            waiting.remove(request)
            request.stream_id = self._next_stream_id
            self._next_stream_id += 1
            request.advance(RequestState.RUNNING)
            self._running[request.request_id] = request
        return admitted

    def _build_offline_batch(self, now: float) -> list[Request]:
        waiting = self._offline_waiting
        oldest = waiting.oldest()
        if oldest is None:
            return []
        if waiting.is_overdue(oldest, now):
            batch: Sequence[Request] = fill_in_order(waiting, self._limits, now)
        elif len(waiting) < self._ladder.smallest:
            return []
        else:
            selected = self._policy.select(waiting, self._limits, now)
            # Where no rung is filled the bounds refused them all: the first ships alone.
            batch = selected[: self._ladder.largest_up_to(len(selected)) or 1]
        for request in batch:
            waiting.remove(request)
            del self._index[request.request_id]
            request.advance(RequestState.RUNNING)
        return sorted(batch, key=lambda r: (r.arrived, r.request_id))
