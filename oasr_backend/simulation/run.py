"""One run: arrivals through the real scheduler and a simulated machine that does one batch at a time."""

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
    """Serve every arrival; the scheduler's cost table learns from the batches unless `learns` is False."""
    clock = _Clock()
    scheduler = Scheduler(config, clock, costs)
    rows = _Rows(arrivals, config)
    num_arrived = num_batches = padded_frames = 0
    while True:
        while num_arrived < len(arrivals) and arrivals[num_arrived].time_s <= clock.now:
            for request in rows.of_arrival(num_arrived):
                scheduler.add_request(request)
            num_arrived += 1
        batch = scheduler.schedule().offline_batch
        # As the engine does: a forced batch that lies between the rungs runs as several that do not.
        for part in scheduler.split_offline_batch(batch):
            longest = config.fixed_window_frames or max(request.num_frames for request in part)
            began_s, seconds = clock.now, service(len(part), longest)
            clock.now += seconds
            if learns:
                scheduler.costs.observe(len(part), longest, seconds)
            for request in part:
                for piece in rows.ran(request, num_batches, began_s, clock.now):
                    scheduler.add_request(piece)
            num_batches += 1
            padded_frames += len(part) * longest
        if batch:
            continue
        next_arrival_s = arrivals[num_arrived].time_s if num_arrived < len(arrivals) else None
        events = [t for t in (scheduler.next_wakeup(), next_arrival_s) if t is not None]
        if not events:
            break
        clock.now = max(clock.now, min(events))
    return Run(
        rows.arrivals_served(),
        rows.rows_served(),
        padded_frames,
        num_batches,
        scheduler.num_policy_switches,
    )


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
