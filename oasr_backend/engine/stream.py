"""One live stream as the engine sees it: what callers wait for, and since when it idles.

It knows nothing of threads or of scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples
from oasr_backend.errors import AsrError
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.streams import Partial, Stream
from oasr_backend.request import Request


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a caller asks when it starts a stream."""

    stream_id: str
    sample_rate_hz: int = SAMPLE_RATE_HZ
    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    priority: int = 0
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next audio of a stream.

    samples: (samples,) float32 in ±1, mono, at the stream's rate; none is allowed.
    is_last: no audio follows; the reply carries the final text.
    words: whether the reply carries words with times.
    is_cancelled: asked once a second while the chunk waits.
    """

    samples: Samples
    is_last: bool = False
    words: bool = False
    is_cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What the caller of a chunk gets, exactly once: the text so far or an error.

    finish_reason: of a final result: "end", or "length" where the stream's cache was full.
    duration_s: audio of the stream up to and with this chunk.
    latency_s: from the chunk's acceptance to this result.
    num_encoder_chunks: encoder chunks that the text comes from.
    """

    stream_id: str
    partial: Partial | None
    error: AsrError | None = None
    is_final: bool = False
    finish_reason: str | None = None
    duration_s: float = 0.0
    latency_s: float = 0.0
    num_encoder_chunks: int = 0


OnChunkDone = Callable[[ChunkResult], None]


@dataclass(slots=True)
class WaitingChunk:
    """A chunk that was accepted, and the encoder chunks of its stream after which it is answered.

    Its audio is the stream's by then.
    """

    on_done: OnChunkDone
    is_last: bool
    words: bool
    is_cancelled: Callable[[], bool]
    accepted_at: float
    duration_s: float
    num_chunks_due: int


@dataclass(slots=True, eq=False)
class LiveStream:
    """A stream that was started and is not over.

    request: the scheduler's; its payload is this stream.
    num_accepted: samples, at its own rate.
    is_ended: its last chunk has come.
    ended_by: why it is over before that.
    is_counted: among the open ones.
    waiting: any thread may add to it, under the engine's lock; the engine's thread takes from it.
    """

    asked: StreamRequest
    request: Request
    stream: Stream
    last_active_at: float
    num_accepted: int = 0
    is_ended: bool = False
    is_over: bool = False
    is_counted: bool = True
    ended_by: AsrError | None = None
    waiting: deque[WaitingChunk] = field(default_factory=deque)

    @property
    def stream_id(self) -> str:
        return self.asked.stream_id

    @property
    def is_due(self) -> bool:
        """A chunk of it can run."""
        return self.stream.num_chunks_run < self.stream.num_chunks_due

    def seconds(self, num_samples: int) -> float:
        """Return how long so many of its samples last."""
        return num_samples / self.asked.sample_rate_hz
