"""The engine for streams: one thread that owns the scheduler and the model, and runs what is due in a step.

Chunks come in from any thread and are answered through callbacks, each once, when every encoder chunk that its audio
completes has run. It knows nothing of Triton.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np

from oasr_backend.audio import SAMPLE_RATE_HZ, Samples, check_sample_rate, check_samples
from oasr_backend.config import EngineConfig
from oasr_backend.engine.batches import Batch, Running, best_rows, cut
from oasr_backend.engine.inbox import Inbox
from oasr_backend.engine.metrics import MemoryMetrics, Metrics, watch_runs
from oasr_backend.engine.stream import (
    Chunk,
    ChunkResult,
    LiveStream,
    OnChunkDone,
    StreamRequest,
    WaitingChunk,
)
from oasr_backend.errors import (
    AsrError,
    CancelledError,
    ClientError,
    ConfigError,
    ServerError,
    UnavailableError,
)
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.streams import StreamingModel, run
from oasr_backend.request import FRAMES_PER_SECOND, Request
from oasr_backend.scheduler import Scheduler
from oasr_backend.scheduler.ladder import Ladder
from oasr_backend.spans import span

log = logging.getLogger(__name__)

Clock = Callable[[], float]

MAX_FAULTS = 1000
"""Commands that may fail while a broken engine answers everybody."""

LOOK_EVERY_S = 1.0
"""Whether a client has gone can only be asked, which takes a while: of chunks that wait as long as this, as often as
this. Streams that idle are found at the same time."""


class StreamingEngine:
    """Serves live streams in batches of whatever is due; every chunk gets exactly one result."""

    def __init__(
        self,
        config: EngineConfig,
        model: StreamingModel[Any],
        metrics: Metrics | None = None,
        clock: Clock = time.monotonic,
        workers: Executor | None = None,
    ) -> None:
        """Raises ConfigError where `max_buffered_s` cannot hold what the model needs."""
        least_s = 2 * model.chunk_frames / FRAMES_PER_SECOND
        if config.max_buffered_s < least_s:
            raise ConfigError(
                f"max_buffered_s is {config.max_buffered_s:g}; it must be at least {least_s:g}, two encoder chunks of "
                "this model, or none would ever be whole: raise it"
            )
        self._config = config
        self._model = model
        self._metrics = metrics if metrics is not None else MemoryMetrics()
        self._clock = clock
        self._scheduler = Scheduler(config, clock)
        self._ladder = Ladder(config.preferred_batch_size or (), config.max_batch_size)
        self._max_open = (config.max_streams or config.max_batch_size) + config.max_waiting
        self._inbox = Inbox()
        self._numbers = count()
        self._accepting = threading.Lock()
        self._refusal: UnavailableError | None = None
        # Of those that take more audio, by the caller's id.
        self._live: dict[str, LiveStream] = {}
        self._num_open = 0
        self._num_waiting = 0
        # Everyone.
        self._streams: dict[LiveStream, None] = {}
        # Of those admitted, whoever has a chunk to run, in the order in which they became ready.
        self._running: set[LiveStream] = set()
        self._ready: dict[LiveStream, None] = {}
        # False while the cache is known to have no room for one more.
        self._may_admit = True
        self._num_workers = config.parallel_batches or model.parallel_batches
        self._workers = workers or ThreadPoolExecutor(self._num_workers, "oasr-forward")
        self._looked_at = clock()
        self._thread = threading.Thread(target=self._run, name="oasr-streams", daemon=True)
        self._watch()

    # Called from any thread.

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def warm_up(self) -> None:
        """Run batches of every size, so that the first streams find everything allocated, and measure them.

        To be called before `start`, if at all. It stops after `measure_costs_s`, and runs none where that is 0.
        """
        ends_at = self._clock() + self._config.measure_costs_s
        num_samples = 3 * self._model.chunk_frames * SAMPLE_RATE_HZ // FRAMES_PER_SECOND
        noise = (0.01 * np.random.default_rng(0).normal(size=num_samples)).astype(np.float32)
        for num_rows in self._ladder.rungs:
            if self._clock() >= ends_at:
                return
            streams = [
                self._model.open(TranscribeOptions(), SAMPLE_RATE_HZ) for _ in range(num_rows)
            ]
            held = [stream for stream in streams if self._model.reserve(stream)]
            for stream in held:
                stream.accept(noise)
            run(self._model, held, num_rows)
            started_at = self._clock()
            run(self._model, [one for one in held if self._model.reserve(one)], num_rows)
            seconds = self._clock() - started_at
            self._scheduler.costs.measure(num_rows, self._model.chunk_frames, seconds)
            for stream in held:
                self._model.close(stream)

    def close(self) -> None:
        """Accept nothing more, answer what was accepted, and stop."""
        with self._accepting:
            self._refusal = UnavailableError(
                "the engine is shutting down: start the stream on another server"
            )
        self._inbox.leave(lambda: None)
        if self._thread.is_alive():
            self._thread.join()
        self._workers.shutdown()

    def add_request(self, asked: StreamRequest) -> None:
        """Start a stream; a live one of the same id is over, its chunks answered with CancelledError.

        Raises ClientError for options that cannot be done, UnavailableError where too many streams are open.
        """
        check_sample_rate(asked.sample_rate_hz)
        stream = self._model.open(asked.options, asked.sample_rate_hz)
        now = self._clock()
        request = Request(
            f"{asked.stream_id}#{next(self._numbers)}",
            0,
            streaming=True,
            priority=asked.priority,
            tenant=asked.tenant,
            arrival_time=now,
        )
        live = LiveStream(asked, request, stream, last_active_at=now)
        request.payload = live
        with self._accepting:
            replaced = self._live.get(asked.stream_id)
            self._check_open(self._num_open - (replaced is not None))
            if replaced is not None:
                self._uncount(replaced)
            self._live[asked.stream_id] = live
            self._num_open += 1
            # Within the lock, so that commands come in the order in which they were accepted.
            if replaced is not None:
                error = CancelledError("another START with the same id has begun the stream afresh")
                self._inbox.leave(lambda: self._end(replaced, error))
            self._inbox.leave(lambda: self._open(live))

    def feed_chunk(self, stream_id: str, chunk: Chunk, on_done: OnChunkDone) -> None:
        """Accept a stream's next audio, which must stay as it is; `on_done` gets its one result.

        In the engine's thread, or at once, before this returns, where the audio completes no encoder chunk and none
        waits. `on_done` must not feed the stream itself.

        Raises KeyError where no stream of that id takes audio, ClientError for samples that are none, and
        UnavailableError beyond `max_buffered_s`, but for the last chunk, or once closed. The stream goes on without a
        chunk that was refused.
        """
        check_samples(chunk.samples)
        samples = np.asarray(chunk.samples, dtype=np.float32)
        with self._accepting:
            if self._refusal is not None:
                raise self._refusal
            live = self._live[stream_id]
            self._check_room(live, len(samples), chunk.is_last)
            completes_chunk = self._take_audio(live, samples, chunk.is_last)
            waiting = WaitingChunk(
                on_done,
                chunk.is_last,
                chunk.words,
                chunk.is_cancelled,
                live.last_active_at,
                live.seconds(live.num_accepted),
                live.stream.num_chunks_due,
            )
            is_answered_at_once = not (completes_chunk or live.waiting or live.ended_by)
            result = None
            if is_answered_at_once:
                self._metrics.add("oasr_chunks_total", 1, outcome="ok")
                # Within the lock: as long as nothing more comes, nothing of the stream runs.
                result = self._result(live, waiting)
            else:
                live.waiting.append(waiting)
                # Not before: an ended stream for which nothing waits is closed.
                live.is_ended = chunk.is_last
                self._num_waiting += 1
                self._inbox.leave(lambda: self._look_at(live))
        if result is not None:
            self._deliver(live, waiting, result)

    def give_up(self, stream_id: str) -> None:
        """End a stream without a final text once its chunks are answered; KeyError where none of that id is live."""
        with self._accepting:
            live = self._live.pop(stream_id)
            live.is_ended = True
            self._inbox.leave(lambda: self._look_at(live))

    def abort(self, stream_id: str) -> None:
        """End a stream, answering its chunks with CancelledError; KeyError where no stream of that id takes audio."""
        error = CancelledError("the stream was cancelled")
        with self._accepting:
            live = self._live[stream_id]
            self._inbox.leave(lambda: self._end(live, error))

    def asked(self, stream_id: str) -> StreamRequest:
        """Return what a live stream was started with; KeyError where no stream of that id takes audio."""
        with self._accepting:
            return self._live[stream_id].asked

    @property
    def num_open(self) -> int:
        """Streams that are not over."""
        return self._num_open

    def _take_audio(self, live: LiveStream, samples: Samples, is_last: bool) -> bool:
        """Give a stream its next audio; tell whether the engine has something to do for it."""
        live.num_accepted += len(samples)
        live.last_active_at = self._clock()
        num_chunks_due = live.stream.num_chunks_due
        if is_last:
            del self._live[live.stream_id]
        try:
            live.stream.accept(samples)
            if is_last:
                live.stream.finish()
        except Exception as error:
            log.exception("stream %s: its audio could not be prepared", live.stream_id)
            text = f"stream {live.stream_id}: preparing failed: {error!r}"
            live.ended_by = ServerError(text)
        return is_last or live.stream.num_chunks_due > num_chunks_due

    def _uncount(self, live: LiveStream) -> None:
        """Count a stream no longer: it is over, or another one has its id."""
        self._num_open -= live.is_counted
        live.is_counted = False

    def _check_open(self, num_open: int) -> None:
        if self._refusal is not None:
            raise self._refusal
        if num_open >= self._max_open:
            raise UnavailableError(
                f"{num_open} streams are open; limit is {self._max_open} (max_streams and max_waiting): "
                "try again later, or raise one of them"
            )

    def _check_room(self, live: LiveStream, num_samples: int, is_last: bool) -> None:
        """Refuse a chunk for which there is no room. The last one has it: it could not come again."""
        if live.seconds(num_samples) > self._config.max_buffered_s:
            raise ClientError(
                f"the chunk lasts {live.seconds(num_samples):.1f} s; limit is {self._config.max_buffered_s:g} s "
                "(max_buffered_s): send it as several, or raise the limit"
            )
        num_run = live.stream.num_chunks_run * self._samples_a_chunk(live)
        buffered_s = live.seconds(live.num_accepted + num_samples - num_run)
        if buffered_s > self._config.max_buffered_s and not is_last:
            raise UnavailableError(
                f"{buffered_s:.1f} s of the stream's audio wait; limit is {self._config.max_buffered_s:g} s "
                "(max_buffered_s): wait for answers before sending more, or raise the limit"
            )

    # Called from the engine's thread.

    def _run(self) -> None:
        try:
            is_busy = False
            while not self._is_done():
                self.take_commands(0.0 if is_busy else self._seconds_to_wakeup())
                is_busy = self.step()
                self._close_idle()
        except Exception as error:
            log.exception("the engine of streams has stopped on a fault of its own")
            self._fail_everything(error)

    def _is_done(self) -> bool:
        with self._accepting:
            return self._refusal is not None and not self._num_waiting

    def _close_idle(self) -> None:
        """Once nothing more is accepted, end the streams that wait for no answer: others wait for their places."""
        if self._refusal is None:
            return
        self.take_commands()  # who was accepted before is here now
        for live in [live for live in self._streams if not live.waiting]:
            self._close(live)

    def take_commands(self, timeout_s: float | None = 0.0) -> None:
        """Carry out what other threads have left."""
        for command in self._inbox.take(timeout_s):
            command()

    def step(self) -> bool:
        """Run one chunk of every stream that is due and admitted; tell whether there was any."""
        self._look_around()
        self._admit()
        # Making room for one may push out another, before its turn or after.
        ready = [live for live in list(self._ready) if live in self._ready and self._can_run(live)]
        ready = [live for live in ready if live in self._ready]
        most_rows = best_rows(len(ready), self._num_workers, self._ladder, self._batch_time_s)
        running: deque[Running] = deque()
        for batch in cut(ready, self._ladder, self._batch_time_s, most_rows):
            running.append(self._launch(batch))
            if len(running) > self._num_workers:
                self._settle(running.popleft())
        while running:
            self._settle(running.popleft())
        return bool(ready)

    def _seconds_to_wakeup(self) -> float | None:
        admission_at = self._scheduler.next_wakeup() if self._may_admit else None
        look_at = self._looked_at + LOOK_EVERY_S if self._streams else None
        times = [t for t in (admission_at, look_at) if t is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def _open(self, live: LiveStream) -> None:
        self._streams[live] = None
        self._scheduler.add_request(live.request)

    def _look_at(self, live: LiveStream) -> None:
        """See what is to do for a stream that has got audio."""
        if live.is_over:
            return
        self._scheduler.update(live.request.request_id, self._backlog_frames(live))
        self._go_on(live)

    def _go_on(self, live: LiveStream) -> None:
        """Answer the chunks whose audio has run, and see whether the stream has more to run."""
        while live.waiting and (
            live.stream.is_full or live.waiting[0].num_chunks_due <= live.stream.num_chunks_run
        ):
            self._answer_next(live)
        if live.ended_by is not None or live.stream.is_full or (live.is_ended and not live.waiting):
            self._close(live)
        elif live.is_due and live in self._running:
            self._ready[live] = None
        else:
            self._ready.pop(live, None)

    def _admit(self) -> None:
        if not self._may_admit:
            return
        with span("schedule"):
            admitted = self._scheduler.schedule().newly_admitted
        for request in admitted:
            live = request.payload
            assert isinstance(live, LiveStream)
            self._running.add(live)
            self._go_on(live)

    def _can_run(self, live: LiveStream) -> bool:
        """Make room in the cache for a stream's next chunk, where need be by sending others back to wait."""
        while not self._model.reserve(live.stream):
            victim = self._preempt()
            if victim is live:
                return False
        return True

    def _preempt(self) -> LiveStream:
        request = self._scheduler.preempt()
        assert request is not None, "one stream alone always fits"
        victim = request.payload
        assert isinstance(victim, LiveStream)
        self._model.swap_out(victim.stream)
        self._running.discard(victim)
        self._ready.pop(victim, None)
        self._may_admit = not self._running
        self._metrics.add("oasr_preemptions_total", 1)
        return victim

    def _launch(self, batch: Batch) -> Running:
        """Have a batch run by a worker, while the next one is prepared."""
        num_run = [live.stream.num_chunks_run for live in batch.streams]
        started_at = self._clock()
        done: Future[tuple[Any, float]]
        try:
            with span("prepare"):
                streams = [live.stream for live in batch.streams]
                inputs = self._model.prepare(streams, batch.num_rows)
            prepare_s = self._clock() - started_at
            done = self._workers.submit(self._forward, inputs, prepare_s)
        except Exception as error:
            log.exception("a batch of %d streams could not be prepared", len(batch.streams))
            inputs, done = None, Future()
            done.set_exception(error)
        return Running(batch, num_run, inputs, done)

    def _forward(self, inputs: Any, prepare_s: float) -> tuple[Any, float]:
        """Run a batch; return its outputs, and the seconds that it took. In a worker's thread."""
        started_at = self._clock()
        try:
            with span("step"):
                outputs = self._model.forward(inputs)
        except Exception:
            raise
        except (
            BaseException
        ) as error:  # SystemExit and its like would end the engine's thread, not this one
            raise RuntimeError(f"the forward was ended by {error!r}") from error
        return outputs, prepare_s + self._clock() - started_at

    def _settle(self, running: Running) -> None:
        """Answer what a batch has answered; where it failed, run each stream alone: only the guilty one is over."""
        batch = running.batch
        try:
            outputs, seconds = running.done.result()
            self._model.take([live.stream for live in batch.streams], running.inputs, outputs)
        except Exception as error:
            ids = ", ".join(live.stream_id for live in batch.streams)
            log.exception("a batch of %d streams failed (%s)", len(batch.streams), ids)
            self._settle_failed(running, error)
            return
        self._metrics.observe("oasr_batch_size", len(batch.streams))
        self._metrics.observe("oasr_step_seconds", seconds)
        self._scheduler.costs.observe(batch.num_rows, self._model.chunk_frames, seconds)
        for live in batch.streams:
            self._go_on(live)

    def _settle_failed(self, running: Running, error: Exception) -> None:
        streams = running.batch.streams
        if len(streams) == 1:
            text = f"stream {streams[0].stream_id}: transcribing failed: {error!r}"
            self._end(streams[0], ServerError(text))
            return
        for live, before in zip(streams, running.num_run, strict=True):
            if live.stream.num_chunks_run == before:
                self._settle(self._launch(Batch([live], self._ladder.smallest)))
            else:  # it had run before another one failed
                self._go_on(live)

    def _answer_next(self, live: LiveStream) -> None:
        """Give the chunk that has waited the longest its one result."""
        waiting = live.waiting[0]
        self._deliver(live, waiting, self._result(live, waiting))
        # Not before: it tells callers' threads that the next one's turn has not come.
        with self._accepting:
            live.waiting.popleft()
            self._num_waiting -= 1
        live.last_active_at = self._clock()
        outcome = "ok" if live.ended_by is None else live.ended_by.outcome
        self._metrics.add("oasr_chunks_total", 1, outcome=outcome)
        latency_s = live.last_active_at - waiting.accepted_at
        self._metrics.observe("oasr_chunk_latency_seconds", latency_s)

    def _deliver(self, live: LiveStream, waiting: WaitingChunk, result: ChunkResult) -> None:
        try:
            waiting.on_done(result)
        except Exception:
            log.exception("stream %s: a result could not be delivered", live.stream_id)

    def _result(self, live: LiveStream, waiting: WaitingChunk) -> ChunkResult:
        """Return what a chunk gave: the text so far, or why the stream is over."""
        stream, partial, reason = live.stream, None, None
        if live.ended_by is None:
            try:
                partial = stream.partial(waiting.words)
                reason = "length" if stream.is_full else "end" if waiting.is_last else None
            except Exception as fault:
                log.exception("stream %s: its text could not be made", live.stream_id)
                error = ServerError(f"stream {live.stream_id}: making the text failed: {fault!r}")
                self._inbox.leave(lambda: self._end(live, error))
                live.ended_by = error
        return ChunkResult(
            live.stream_id,
            partial,
            live.ended_by,
            is_final=reason is not None,
            finish_reason=reason,
            duration_s=waiting.duration_s,
            latency_s=self._clock() - waiting.accepted_at,
            num_encoder_chunks=stream.num_chunks_run,
        )

    def _end(self, live: LiveStream, error: AsrError) -> None:
        """Answer whatever waits for a stream with an error; the stream is over."""
        if not live.is_over:
            live.ended_by = error
            self._close(live)

    def _close(self, live: LiveStream) -> None:
        """Answer whatever waits for a stream, and free what it holds."""
        with self._accepting:
            live.is_over = True
            if self._live.get(live.stream_id) is live:
                del self._live[live.stream_id]
            self._uncount(live)
        while live.waiting:
            self._answer_next(live)
        self._scheduler.abort_request(live.request.request_id)
        self._running.discard(live)
        self._ready.pop(live, None)
        self._streams.pop(live, None)
        self._model.close(live.stream)
        self._may_admit = True

    def _look_around(self) -> None:
        """Once in a while, end the streams that idle or whose clients have gone."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        for live in list(self._streams):
            if live.waiting:  # who waits for an answer does not idle
                if live.waiting[0].accepted_at + LOOK_EVERY_S <= now and self._is_cancelled(live):
                    self._end(live, CancelledError("the stream was cancelled"))
            elif live.last_active_at + self._config.max_idle_s <= now:
                max_idle_s = self._config.max_idle_s
                log.info("stream %s sent nothing for %g s: it is over", live.stream_id, max_idle_s)
                self._end(live, ClientError(f"the stream {idle_text(max_idle_s)}"))

    def _is_cancelled(self, live: LiveStream) -> bool:
        with self._accepting:
            all_waiting = list(live.waiting)
        try:
            return any(waiting.is_cancelled() for waiting in all_waiting)
        except Exception:
            log.exception("stream %s: whether it is cancelled is not known", live.stream_id)
            return False

    def _samples_a_chunk(self, live: LiveStream) -> int:
        return self._model.chunk_frames * live.asked.sample_rate_hz // FRAMES_PER_SECOND

    def _backlog_frames(self, live: LiveStream) -> int:
        num_chunks = live.stream.num_chunks_due - live.stream.num_chunks_run
        return num_chunks * self._model.chunk_frames

    def _batch_time_s(self, num_rows: int) -> float:
        return self._scheduler.costs.batch_time_s(num_rows, self._model.chunk_frames)

    def _watch(self) -> None:
        """Have the state of streams and caches shown."""
        watch = self._metrics.watch
        watch("oasr_backlog_requests", lambda: self._num_waiting)
        watch("oasr_streams", lambda: len(self._running), state="running")
        watch("oasr_streams", lambda: self._scheduler.num_waiting_streaming, state="waiting")
        watch("oasr_cache_blocks", lambda: self._model.num_blocks_used, state="used")
        self._metrics.set("oasr_cache_blocks", self._model.num_blocks, state="all")
        watch_runs(self._metrics, self._model.runs)

    def _fail_everything(self, error: Exception) -> None:
        with self._accepting:
            self._refusal = UnavailableError(f"the engine has stopped: {error!r}: reload the model")
        for _ in range(MAX_FAULTS):
            if self._is_done():
                break
            with contextlib.suppress(Exception):  # a command may fail again
                self.take_commands()
                for live in list(self._streams):
                    text = f"stream {live.stream_id}: the engine stopped: {error!r}"
                    self._end(live, ServerError(text))


def idle_text(max_idle_s: float) -> str:
    """Say why a stream is over, and what to do."""
    return f"is over or sent nothing for {max_idle_s:g} s (max_idle_s): send START to begin another"
