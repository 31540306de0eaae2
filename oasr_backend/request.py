"""One request as the scheduler sees it, and the table of what may become of it.

It knows nothing of audio: `payload` is the engine's own and is never looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

FRAMES_PER_SECOND = 100
"""Durations are counted in frames of 10 ms everywhere, as Kaldi and Whisper do."""


NO_TICKET = -1
"""The ticket of a request that is in no queue."""


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"

    # By identity: Enum's own goes through the name, twice for every move of every request.
    __hash__ = object.__hash__


TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.RUNNING, RequestState.ABORTED}),
    # Back to WAITING is a preemption: the stream was swapped out and waits again.
    RequestState.RUNNING: frozenset(
        {RequestState.FINISHED, RequestState.ABORTED, RequestState.WAITING}
    ),
    RequestState.FINISHED: frozenset(),
    RequestState.ABORTED: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """A request was moved to a state that its present one does not lead to: our bug."""


def check_length(request_id: str, num_frames: int) -> None:
    """Raise ValueError for a negative length."""
    if num_frames < 0:
        raise ValueError(f"num_frames of request {request_id!r} is {num_frames}; it must be >= 0")


@dataclass(slots=True, eq=False)
class Request:
    """One utterance or one stream that wants the encoder.

    num_frames: length of the audio in frames of 10 ms; of a stream, what it has buffered so far.
    priority: lower is sooner; below 0 counts as 0, so that nobody overtakes the default class.
    arrival_time: in the scheduler's clock; the scheduler sets it where it is None.
    language, speech_frames: what estimates of the job's size may use.
    size: the estimated size, set by the scheduler.
    served_frames: of a stream, what its tenant was charged for.
    ticket: what files it in the orders of a queue, NO_TICKET outside of them.
    """

    request_id: str
    num_frames: int
    streaming: bool = False
    priority: int = 0
    tenant: str | None = None
    arrival_time: float | None = None
    language: str | None = None
    speech_frames: int | None = None
    payload: object = None
    size: int = 1
    stream_id: int | None = None
    state: RequestState = RequestState.WAITING
    served_frames: int = field(default=0, repr=False)
    ticket: int = field(default=NO_TICKET, repr=False)

    def __post_init__(self) -> None:
        check_length(self.request_id, self.num_frames)
        self.priority = max(0, self.priority)

    def advance(self, state: RequestState) -> None:
        """Move to `state`, or raise IllegalTransitionError naming the request and both states."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(
                f"request {self.request_id!r} cannot go from {self.state.value} to {state.value}"
            )
        self.state = state

    @property
    def arrived(self) -> float:
        """The arrival time of a request that has been added."""
        assert self.arrival_time is not None, "the scheduler sets it at add_request"
        return self.arrival_time
