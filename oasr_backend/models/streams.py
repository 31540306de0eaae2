"""What the engine of streams asks of a model.

It knows nothing of Triton, of threads or of who is admitted: a model opens streams, feeds them and runs some of them
by one encoder chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from oasr_backend.audio import Samples
from oasr_backend.models.base import TranscribeOptions, Transcript


@dataclass(frozen=True, slots=True)
class Partial:
    """What a stream has said so far.

    stable_text: what the text begins with, whatever is said next.
    """

    transcript: Transcript
    stable_text: str


class Stream(Protocol):
    """One stream's audio, caches and text.

    Callers' threads give it audio, one at a time, while the engine's may run it; its text is read by either, while no
    chunk of it is due.

    num_chunks_run: encoder chunks that have run.
    num_chunks_due: encoder chunks that the audio so far completes; after `finish`, all there will be.
    is_full: its cache takes no more: the text so far is final.
    """

    num_chunks_run: int
    num_chunks_due: int
    is_full: bool

    def accept(self, samples: Samples) -> None:
        """Take the next (samples,) float32 in ±1, at the stream's own rate; they are the stream's to keep."""

    def finish(self) -> None:
        """Learn that no audio follows: what is left makes a last, shorter chunk."""

    def partial(self, words: bool) -> Partial:
        """Return what was said so far; words with times only where asked for."""


StreamT = TypeVar("StreamT", bound=Stream)


class StreamingModel(Protocol[StreamT]):
    """A loaded model of streams; one thread calls it, but for `open` and `forward`.

    chunk_frames: feature frames of 10 ms from one encoder chunk to the next.
    parallel_batches: how many forwards it best runs at a time.
    num_blocks, num_blocks_used: of the cache.
    """

    chunk_frames: int
    parallel_batches: int

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_blocks_used(self) -> int: ...

    def open(self, options: TranscribeOptions, sample_rate_hz: int) -> StreamT:
        """Return a new stream, which holds nothing of the cache; any thread may call it.

        Raises ClientError for options that the model cannot do.
        """

    def reserve(self, stream: StreamT) -> bool:
        """Hold what the stream's next chunk needs of the cache; False where there is no room. One alone always fits."""

    def prepare(self, streams: Sequence[StreamT], num_rows: int) -> Any:
        """Return the inputs of one chunk of each stream, which is due and reserved, in a forward of `num_rows` rows."""

    def forward(self, inputs: Any) -> Any:
        """Run it and return its outputs; any thread may call it, several at once for streams of their own."""

    def take(self, streams: Sequence[StreamT], inputs: Any, outputs: Any) -> None:
        """Give each stream what its chunk has given."""

    def swap_out(self, stream: StreamT) -> None:
        """Move what a stream holds of the cache to host memory; `reserve` brings it back."""

    def close(self, stream: StreamT) -> None:
        """Free what a stream holds."""

    def runs(self) -> Mapping[str, int]:
        """Return the runs so far by how they ran, from any thread; see `EncoderRuntime`."""


def run(model: StreamingModel[StreamT], streams: Sequence[StreamT], num_rows: int) -> None:
    """Run one chunk of each stream, which is due and reserved, in a forward of `num_rows` rows."""
    inputs = model.prepare(streams, num_rows)
    model.take(streams, inputs, model.forward(inputs))
