"""The streams: those that wait for admission, and the pool of those that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf

from oasr_backend.config import EngineConfig
from oasr_backend.request import FRAMES_PER_SECOND, NO_TICKET, Request, RequestState
from oasr_backend.scheduler.fairness import TenantShares
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.scheduler.policies.ratio import response_ratio
from oasr_backend.scheduler.queue import WaitingQueue


class StreamPool:
    """Admits streams to a bounded pool, in preferred sizes up to the top rung and freely above it."""

    def __init__(self, config: EngineConfig, ladder: Ladder, shares: TenantShares | None) -> None:
        self._config = config
        self._ladder = ladder
        self._shares = shares
        self._max_streams = config.max_streams or config.max_batch_size
        self._sorts = config.streaming_cohort_admit or config.schedule_policy == "sjf"
        self._next_stream_id = 0
        self.waiting = WaitingQueue(config.max_wait_time)
        self.running: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """File a stream that waits for admission."""
        if self._shares is not None:
            self._shares.enter(request.tenant)
        self.waiting.add(request)

    def remove(self, request: Request) -> None:
        """Take a waiting stream out."""
        self.waiting.remove(request)
        request.ticket = NO_TICKET
        if self._shares is not None:
            self._shares.leave(request.tenant)

    def refile(self, request: Request, change: Callable[[], None]) -> None:
        """Carry out a change of a waiting stream's length, by which nothing is filed here."""
        assert request.ticket != NO_TICKET, "it waits"
        change()

    def charge(self, request: Request) -> None:
        """Charge a running stream's tenant for what has come since it was last charged."""
        if self._shares is not None and request.num_frames > request.served_frames:
            new_frames = request.num_frames - request.served_frames
            self._shares.charge(request.tenant, new_frames / FRAMES_PER_SECOND)
            request.served_frames = request.num_frames

    def admit(self, now: float) -> list[Request]:
        """Move streams from waiting to running, and return them in the order of their admission."""
        num_admitted = self._num_to_admit(now)
        if num_admitted == 0:
            return []
        admitted = list(islice(self._in_order(now), num_admitted))
        for request in admitted:
            request.advance(RequestState.RUNNING)
            self.charge(request)
            self.remove(request)
            request.stream_id = self._next_stream_id
            self._next_stream_id += 1
            self.running[request.request_id] = request
        return admitted

    def preempt(self, now: float) -> Request | None:
        """Move a running stream back to waiting, its wait beginning now; None where none runs."""
        if not self.running:
            return None
        victim = max(self.running.values(), key=self._victim_rank(now))
        del self.running[victim.request_id]
        victim.advance(RequestState.WAITING)
        victim.arrival_time = now
        self.add(victim)
        return victim

    def due_at(self, now: float) -> float:
        """Return when the next admission is due: `now` if at once, inf where it waits for more than time."""
        oldest = self.waiting.oldest()
        if oldest is None or self._num_free() <= 0:
            return inf
        if self._num_to_admit(now):
            return now
        return oldest.arrived + self._config.max_wait_time

    def _num_free(self) -> int:
        return self._max_streams - len(self.running)

    def _num_to_admit(self, now: float) -> int:
        num_running = len(self.running)
        num_available = min(self._num_free(), len(self.waiting))
        if num_available <= 0:
            return 0
        if num_running >= self._ladder.cap:
            return num_available
        target = self._ladder.largest_up_to(num_running + num_available)
        if target > num_running:
            return target - num_running
        oldest = self.waiting.oldest()
        assert oldest is not None
        return num_available if self.waiting.is_overdue(oldest, now) else 0

    def _in_order(self, now: float) -> Iterator[Request]:
        """Yield the waiting streams: the overdue oldest first; the rest by class, and where sorting is on by length.

        A stream's length is what it has buffered, so it grows while it waits: without the overdue first, the one that
        waited longest would always come last. With shares, a tenant's turn comes before its streams' classes.
        """
        yield from self.waiting.overdue(now)
        fresh = [r for r in self.waiting if not self.waiting.is_overdue(r, now)]
        yield from sorted(fresh, key=self._admission_rank())

    def _admission_rank(self) -> Callable[[Request], tuple[float, int, int, float, str]]:
        shares, sorts = self._shares, self._sorts
        return lambda r: (
            0.0 if shares is None else shares.served_s(r.tenant),
            r.priority,
            r.size if sorts else 0,
            r.arrived,
            r.request_id,
        )

    def _victim_rank(self, now: float) -> Callable[[Request], tuple[float, float, int]]:
        """Return the rank whose greatest is preempted; equals go newest first."""
        if self._config.schedule_policy == "sjf":
            return lambda r: (r.size, r.arrived, _stream_id(r))
        if self._config.schedule_policy == "hrrn":
            return lambda r: (-response_ratio(r, now), r.arrived, _stream_id(r))
        return lambda r: (r.priority, r.arrived, _stream_id(r))


def _stream_id(request: Request) -> int:
    assert request.stream_id is not None, "a running stream has its number"
    return request.stream_id
