"""One run: arrivals through the real scheduler and a simulated machine that does a batch or several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler import CostTable, Scheduler
from oasr_backend.simulation.service import Service
from oasr_backend.simulation.workload import Arrival


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one arrival: its first batch's number, when that began, and when its last ended, in seconds."""

    arrival: Arrival
    batch: int
    began_s: float
    ended_s: float

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrival.time_s

    @property
    def wait_s(self) -> float:
        return self.began_s - self.arrival.time_s


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    served: the arrivals, in their order. rows: the rows that they ran as, by time of filing: with a fixed window a
        longer arrival is several pieces.
    """

    served: Sequence[Served]
    rows: Sequence[Served]
    padded_frames: int
    num_batches: int
    num_switches: int

    @property
    def padding_ratio(self) -> float:
        """Frames computed for each frame of audio."""
        return self.padded_frames / sum(s.arrival.num_frames for s in self.served)

    @property
    def throughput(self) -> float:
        """Requests a second, from the first arrival to the last answer."""
        span_s = max(s.ended_s for s in self.served) - self.served[0].arrival.time_s
        return len(self.served) / span_s


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(
    config: EngineConfig,
    arrivals: Sequence[Arrival],
    service: Service,
    costs: CostTable | None = None,
    learns: bool = True,
) -> Run:
    """Serve every arrival on `parallel_batches` workers, each of which takes for a batch what `service` says.

    The scheduler's cost table learns from the batches unless `learns` is False.
    """
    run = _Simulation(config, arrivals, service, costs, learns)
    while True:
        run.end_batches()
        run.arrive()
        if run.dispatch():
            continue
        next_event_s = run.next_event_s()
        if next_event_s is None:
            return run.result()
        run.clock.now = max(run.clock.now, next_event_s)


class _Simulation:
    """The state of a run, and what may happen in it."""

    def __init__(
        self,
        config: EngineConfig,
        arrivals: Sequence[Arrival],
        service: Service,
        costs: CostTable | None,
        learns: bool,
    ) -> None:
        self.clock = _Clock()
        self._config, self._arrivals, self._service = config, arrivals, service
        self._learns = learns
        self._scheduler = Scheduler(config, self.clock, costs)
        self._rows = _Rows(arrivals, config)
        self._workers = _Workers(max(1, config.parallel_batches))
        self._num_arrived = self._num_batches = self._padded_frames = 0

    def end_batches(self) -> None:
        """Answer the batches that have ended by now."""
        for done in self._workers.ended(self.clock.now):
            if self._learns:
                seconds = done.ended_s - done.began_s
                self._scheduler.costs.observe(len(done.part), done.longest, seconds)
            for request in done.part:
                for piece in self._rows.ran(request, done.number, done.began_s, done.ended_s):
                    self._scheduler.add_request(piece)

    def arrive(self) -> None:
        """File what has arrived by now."""
        while (next_s := self._next_arrival_s()) is not None and next_s <= self.clock.now:
            for request in self._rows.of_arrival(self._num_arrived):
                self._scheduler.add_request(request)
            self._num_arrived += 1

    def dispatch(self) -> bool:
        """Give a worker that is free what the scheduler dispatches; tell whether that was anything."""
        if self._workers.are_busy:
            return False
        batch = self._scheduler.schedule().offline_batch
        # As the engine does: a forced batch that lies between the rungs runs as several that do not.
        for part in self._scheduler.split_offline_batch(batch):
            longest = self._config.fixed_window_frames or max(r.num_frames for r in part)
            seconds = self._service(len(part), longest)
            self._workers.start(_Batch(self._num_batches, part, longest), self.clock.now, seconds)
            self._num_batches += 1
            self._padded_frames += len(part) * longest
        return bool(batch)

    def next_event_s(self) -> float | None:
        """Return when something may happen; None where everything is done."""
        dispatch_s = None if self._workers.are_busy else self._scheduler.next_wakeup()
        times = (dispatch_s, self._next_arrival_s(), self._workers.next_end_s())
        return min((t for t in times if t is not None), default=None)

    def result(self) -> Run:
        """Return the finished run."""
        return Run(
            self._rows.arrivals_served(),
            self._rows.rows_served(),
            self._padded_frames,
            self._num_batches,
            self._scheduler.num_policy_switches,
        )

    def _next_arrival_s(self) -> float | None:
        is_last = self._num_arrived == len(self._arrivals)
        return None if is_last else self._arrivals[self._num_arrived].time_s


@dataclass(slots=True)
class _Batch:
    """A batch on its worker."""

    number: int
    part: Sequence[Request]
    longest: int
    began_s: float = 0.0
    ended_s: float = 0.0


class _Workers:
    """The simulated machine: so many batches at a time, each as quick as if alone."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._running: list[_Batch] = []

    @property
    def are_busy(self) -> bool:
        return len(self._running) >= self._num_workers

    def start(self, batch: _Batch, now: float, seconds: float) -> None:
        """Run a batch from now on, or once a worker is free."""
        ends_s = sorted(one.ended_s for one in self._running)
        is_free = len(ends_s) < self._num_workers
        batch.began_s = now if is_free else max(now, ends_s[-self._num_workers])
        batch.ended_s = batch.began_s + seconds
        self._running.append(batch)

    def next_end_s(self) -> float | None:
        """Return when the next batch ends."""
        return min((batch.ended_s for batch in self._running), default=None)

    def ended(self, now: float) -> list[_Batch]:
        """Take the batches that have ended, the earliest first."""
        done = sorted(
            (batch for batch in self._running if batch.ended_s <= now),
            key=lambda batch: (batch.ended_s, batch.number),
        )
        self._running = [batch for batch in self._running if batch.ended_s > now]
        return done


class _Rows:
    """The arrivals as the rows that the engine makes of them.

    With a fixed window an arrival that is longer is cut to it, and keeps two of the largest batches of its pieces in
    flight at most, as in the engine. It is served when its last piece is.
    """

    def __init__(self, arrivals: Sequence[Arrival], config: EngineConfig) -> None:
        self._arrivals = arrivals
        self._window = config.fixed_window_frames
        self._max_in_flight = 2 * max(config.preferred_batch_size or (config.max_batch_size,))
        self._filed: list[
            tuple[int, Arrival]
        ] = []  # by number of the row: the arrival's index, and the piece
        self._served: dict[int, Served] = {}  # by number of the row
        self._left_frames: dict[
            int, int
        ] = {}  # of the arrivals that were cut: what is not yet filed

    def of_arrival(self, index: int) -> Iterator[Request]:
        """Yield the rows that wait once an arrival has come."""
        arrival = self._arrivals[index]
        if self._window is None or arrival.num_frames <= self._window:
            yield self._file(index, arrival)
            return
        self._left_frames[index] = arrival.num_frames
        for _ in range(self._max_in_flight):
            yield from self._next_piece(index, arrival.time_s)

    def ran(
        self, request: Request, batch: int, began_s: float, ended_s: float
    ) -> Iterator[Request]:
        """Note what became of a row, and yield the piece that takes its place."""
        number = int(request.request_id)
        index, piece = self._filed[number]
        self._served[number] = Served(piece, batch, began_s, ended_s)
        yield from self._next_piece(index, ended_s)

    def rows_served(self) -> list[Served]:
        """Return every row, by time of filing."""
        assert len(self._served) == len(self._filed), "every row is served once"
        return sorted(
            (self._served[number] for number in range(len(self._filed))),
            key=lambda row: row.arrival.time_s,
        )

    def arrivals_served(self) -> list[Served]:
        """Return every arrival, in order."""
        whole: dict[int, Served] = {}
        for number, (index, _) in enumerate(self._filed):
            row = self._served[number]
            first = whole.setdefault(index, replace(row, arrival=self._arrivals[index]))
            if row.ended_s > first.ended_s:
                whole[index] = replace(first, ended_s=row.ended_s)
        assert len(whole) == len(self._arrivals), "every arrival is served"
        return [whole[index] for index in range(len(self._arrivals))]

    def _next_piece(self, index: int, now: float) -> Iterator[Request]:
        left = self._left_frames.get(index, 0)
        if self._window is None or not left:
            return
        num_frames = min(left, self._window)
        self._left_frames[index] = left - num_frames
        yield self._file(index, replace(self._arrivals[index], time_s=now, num_frames=num_frames))

    def _file(self, index: int, piece: Arrival) -> Request:
        number = len(self._filed)
        self._filed.append((index, piece))
        # Ids of one width, so that equal arrivals keep their order.
        return Request(
            f"{number:09d}", piece.num_frames, tenant=piece.tenant, arrival_time=piece.time_s
        )


def saturation(config: EngineConfig, arrivals: Sequence[Arrival], service: Service) -> float:
    """Return requests a second at which a policy works off a backlog of all of them."""
    backlog = [Arrival(0.0, a.num_frames, a.tenant) for a in arrivals]
    run = simulate(config, backlog, service)
    return len(backlog) / max(s.ended_s for s in run.served)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
