"""One run: arrivals through the real scheduler and a simulated machine that does one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasr_backend.config import EngineConfig
from oasr_backend.request import Request
from oasr_backend.scheduler import CostTable, Scheduler
from oasr_backend.simulation.service import Service
from oasr_backend.simulation.workload import Arrival


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one arrival: its batch's number, when it began and ended, in seconds."""

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
    """A finished run; `served` is in the order of the arrivals."""

    served: Sequence[Served]
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
    served: list[Served | None] = [None] * len(arrivals)
    num_arrived = num_batches = padded_frames = 0
    while True:
        while num_arrived < len(arrivals) and arrivals[num_arrived].time_s <= clock.now:
            scheduler.add_request(_request(num_arrived, arrivals[num_arrived]))
            num_arrived += 1
        batch = scheduler.schedule().offline_batch
        if batch:
            longest = max(request.num_frames for request in batch)
            began_s, seconds = clock.now, service(len(batch), longest)
            clock.now += seconds
            if learns:
                scheduler.costs.observe(len(batch), longest, seconds)
            for request in batch:
                index = int(request.request_id)
                served[index] = Served(arrivals[index], num_batches, began_s, clock.now)
            num_batches += 1
            padded_frames += len(batch) * longest
            continue
        next_arrival_s = arrivals[num_arrived].time_s if num_arrived < len(arrivals) else None
        events = [t for t in (scheduler.next_wakeup(), next_arrival_s) if t is not None]
        if not events:
            break
        clock.now = max(clock.now, min(events))
    done = [s for s in served if s is not None]
    assert len(done) == len(arrivals), "every arrival is served once"
    return Run(done, padded_frames, num_batches, scheduler.num_policy_switches)


def saturation(config: EngineConfig, arrivals: Sequence[Arrival], service: Service) -> float:
    """Return requests a second at which a policy works off a backlog of all of them."""
    backlog = [Arrival(0.0, a.num_frames, a.tenant) for a in arrivals]
    run = simulate(config, backlog, service)
    return len(backlog) / max(s.ended_s for s in run.served)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _request(index: int, arrival: Arrival) -> Request:
    # Ids of one width, so that equal arrivals keep their order.
    return Request(
        f"{index:09d}", arrival.num_frames, tenant=arrival.tenant, arrival_time=arrival.time_s
    )
