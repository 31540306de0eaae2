"""Live streams through a CTC model, a chunk at a time, at mixed offsets over shared blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import soxr

from oasr_backend.audio import RESAMPLER_QUALITY, SAMPLE_RATE_HZ, Samples
from oasr_backend.bundle import Bundle, StreamingSettings
from oasr_backend.cache.pool import Pool
from oasr_backend.cache.stream import CachePools, StreamCache
from oasr_backend.decode.ctc import CtcDecoder, LogProbs
from oasr_backend.errors import ConfigError
from oasr_backend.features import fbank
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.ctc import CtcConfig, CtcModel
from oasr_backend.models.streams import Partial
from oasr_backend.runtime.base import CacheShape, ChunkBatch, ChunkOutput, EncoderRuntime, Kept

NO_SAMPLES = np.zeros(0, np.float32)


class CtcStream:
    """One stream: samples that wait for their chunk, its place in the caches, and its decoder."""

    def __init__(self, model: CtcModel, chunk_size: int, sample_rate_hz: int) -> None:
        bundle = model.bundle
        self._model = model
        self._chunk_size = chunk_size
        self._step_frames = chunk_size * bundle.subsampling
        self._window_frames = bundle.chunk_frames(chunk_size)
        self._resampler = _Resampler(sample_rate_hz)
        self._num_samples = 0
        # What has come, and what of it is joined: from the first sample of the next chunk on.
        self._pieces: deque[Samples] = deque()
        self._samples: Samples = NO_SAMPLES
        self._partials: dict[bool, Partial] = {}
        self.decoder: CtcDecoder = model.new_decoder()
        self.cache = StreamCache()
        self.num_chunks_run = self.num_chunks_due = 0
        self.is_full = False

    def accept(self, samples: Samples) -> None:
        """Take the next (samples,) float32 in ±1, at the stream's own rate; they are kept."""
        self._keep(self._resampler.accept(samples))
        num_frames = fbank.num_frames(self._num_samples)
        self.num_chunks_due = max(0, (num_frames - self._window_frames) // self._step_frames + 1)

    def finish(self) -> None:
        """Learn that no audio follows: what is left makes a last, shorter chunk, if it makes an encoder frame."""
        self._keep(self._resampler.finish())
        num_encoder_frames = self._model.bundle.encoder_frames(fbank.num_frames(self._num_samples))
        self.num_chunks_due = -(-num_encoder_frames // self._chunk_size)

    def partial(self, words: bool) -> Partial:
        """Return what was said so far."""
        if words not in self._partials:
            best = self.decoder.best()
            text, stable_text = self._model.transcript(best, words), self._model.stable_text(best)
            self._partials[words] = Partial(text, stable_text)
        return self._partials[words]

    def next_window(self) -> Samples:
        """Return the samples of the next chunk, fewer than a window only in the last one."""
        if self._pieces:
            pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
            self._samples = np.concatenate([self._samples, *pieces])
        return self._samples[: fbank.num_samples(self._window_frames)]

    def take(self, log_probs: LogProbs) -> None:
        """Take what the next chunk gave: (frames, vocabulary)."""
        self.decoder.advance(log_probs)
        self._partials.clear()
        self._samples = self._samples[self._step_frames * fbank.SHIFT_SAMPLES :]
        self.num_chunks_run += 1

    def _keep(self, samples: Samples) -> None:
        self._pieces.append(samples)
        self._num_samples += len(samples)


class CtcStreams:
    """A CTC model for live streams: the pools that they share, and the forward that they share."""

    def __init__(
        self,
        config: CtcConfig,
        max_streams: int,
        runtime: EncoderRuntime | None = None,
    ) -> None:
        """Load the bundle; raises ConfigError where it cannot, or cannot stream.

        max_streams: streams that hold a place in the caches at most.
        """
        self._model = CtcModel(config, runtime)
        bundle, streaming = self._model.bundle, _streaming(self._model.bundle, config)
        self._chunk_size = config.decoding_chunk_size or streaming.chunk_size
        max_blocks = _max_blocks(config, streaming, self._chunk_size * self._model.frame_s)
        num_blocks = config.num_cache_blocks or max_streams * max_blocks
        if num_blocks < max_blocks:
            raise ConfigError(
                f"num_cache_blocks is {num_blocks}; one stream fills {max_blocks}: raise it, or lower num_left_chunks "
                "or max_cache_s"
            )
        shape = CacheShape(
            num_blocks,
            (streaming.num_planes, self._chunk_size, streaming.plane_width),
            max_streams,
            (streaming.conv_layers, streaming.conv_frames, streaming.conv_size),
        )
        self.parallel_batches = self._model.runtime.parallel_batches
        self._caches = self._model.runtime.caches(shape)
        self._pools = CachePools(Pool(num_blocks), Pool(max_streams), max_blocks, self._caches)
        self._ends_at_capacity = config.at_capacity == "finish" and _sees_all(config, streaming)
        self.chunk_frames = self._chunk_size * bundle.subsampling

    @property
    def num_blocks(self) -> int:
        """Blocks of the key/value cache."""
        return self._pools.blocks.num_places

    @property
    def num_blocks_used(self) -> int:
        """Blocks that streams hold."""
        return self._pools.blocks.num_used

    def open(self, options: TranscribeOptions, sample_rate_hz: int) -> CtcStream:
        """Return a new stream; raises ClientError for options that the model cannot do."""
        self._model.check_options(options)
        return CtcStream(self._model, self._chunk_size, sample_rate_hz)

    def reserve(self, stream: CtcStream) -> bool:
        """Hold what the stream's next chunk needs of the caches; False where they have no room."""
        return stream.cache.reserve(self._pools)

    def prepare(self, streams: Sequence[CtcStream], num_rows: int) -> ChunkBatch:
        """Return the inputs of one chunk of each stream, which is due and reserved, in a forward of `num_rows` rows."""
        bundle = self._model.bundle
        num_entries = self._num_entries(max(len(stream.cache.blocks) for stream in streams))
        table = np.zeros((num_rows, num_entries), np.int64)
        chunk_length, offset, cache_length = np.zeros((3, num_rows), np.int64)
        places = np.zeros(num_rows, np.int64)
        num_samples = fbank.num_samples(bundle.chunk_frames(self._chunk_size))
        samples = np.zeros((num_rows, num_samples), np.float32)
        for row, stream in enumerate(streams):
            cache, window = stream.cache, stream.next_window()
            samples[row, : len(window)] = window
            chunk_length[row] = bundle.encoder_frames(fbank.num_frames(len(window)))
            offset[row] = cache.offset * self._chunk_size
            cache_length[row] = len(cache.blocks) * self._chunk_size
            table[row, : len(cache.blocks)] = cache.blocks
            places[row] = cache.context
        return ChunkBatch(samples, chunk_length, offset, cache_length, table, places)

    def forward(self, inputs: ChunkBatch) -> ChunkOutput:
        """Run it; several threads may, for streams of their own."""
        return self._caches.run(inputs)

    def take(self, streams: Sequence[CtcStream], inputs: ChunkBatch, outputs: ChunkOutput) -> None:
        """Give each stream what its chunk has given."""
        kept: list[Kept] = []
        try:
            for row, stream in enumerate(streams):
                # What may fail first: a stream whose chunk has not counted runs it again.
                stream.take(outputs.log_probs[row, : inputs.chunk_length[row]])
                kept.append((row, *stream.cache.append(self._pools.max_blocks)))
                stream.is_full = (
                    self._ends_at_capacity and stream.num_chunks_run > self._pools.max_blocks
                )
        finally:
            self._caches.keep(outputs, kept)

    def swap_out(self, stream: CtcStream) -> None:
        """Move what a stream holds of the caches to host memory; `reserve` brings it back."""
        stream.cache.swap_out(self._pools)

    def close(self, stream: CtcStream) -> None:
        """Free what a stream holds."""
        stream.cache.free(self._pools)

    def runs(self) -> Mapping[str, int]:
        return self._model.runtime.runs()

    def _num_entries(self, most_blocks: int) -> int:
        """Return the width of the table: few different ones, so that the runtime finds its memory laid out."""
        width = 1
        while width < most_blocks:
            width *= 2
        return min(width, max(1, self._pools.max_blocks))


class _Resampler:
    """A stream's samples at 16 kHz."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._stream = None
        if sample_rate_hz != SAMPLE_RATE_HZ:
            self._stream = soxr.ResampleStream(
                sample_rate_hz, SAMPLE_RATE_HZ, 1, dtype="float32", quality=RESAMPLER_QUALITY
            )

    def accept(self, samples: Samples) -> Samples:
        if self._stream is None:
            return samples
        return np.asarray(self._stream.resample_chunk(samples), dtype=np.float32)

    def finish(self) -> Samples:
        if self._stream is None:
            return NO_SAMPLES
        return np.asarray(self._stream.resample_chunk(NO_SAMPLES, last=True), dtype=np.float32)


def _streaming(bundle: Bundle, config: CtcConfig) -> StreamingSettings:
    if bundle.streaming is None:
        raise ConfigError(
            f"the bundle in {config.model_dir!r} has no chunk.onnx: its model cannot stream (a symmetric convolution "
            "looks ahead): serve it as whole utterances, or train a causal one"
        )
    return bundle.streaming


def _sees_all(config: CtcConfig, streaming: StreamingSettings) -> bool:
    return _num_left_chunks(config, streaming) < 0


def _num_left_chunks(config: CtcConfig, streaming: StreamingSettings) -> int:
    asked = config.num_left_chunks
    return streaming.num_left_chunks if asked is None else asked


def _max_blocks(config: CtcConfig, streaming: StreamingSettings, chunk_s: float) -> int:
    """Return the blocks that one stream fills at most: a chunk each."""
    num_left_chunks = _num_left_chunks(config, streaming)
    return num_left_chunks if num_left_chunks >= 0 else max(1, int(config.max_cache_s / chunk_s))
