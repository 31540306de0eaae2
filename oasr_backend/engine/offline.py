"""The engine for whole utterances: as many threads as batches run at a time, of which one at a time owns the scheduler.

Utterances come in from any thread; where that takes time, another one prepares them while batches run. It knows nothing
of Triton.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from math import inf

import numpy as np

from oasr_backend.audio import (
    SAMPLE_RATE_HZ,
    AudioReader,
    check_duration,
    check_sample_rate,
    check_samples,
)
from oasr_backend.config import EngineConfig
from oasr_backend.engine.backlog import Backlog
from oasr_backend.engine.costs import BatchCosts
from oasr_backend.engine.deadlines import Deadlines
from oasr_backend.engine.inbox import Inbox
from oasr_backend.engine.job import Job, Pieces, Result, Row, Utterance
from oasr_backend.engine.metrics import MemoryMetrics, Metrics, watch_runs
from oasr_backend.errors import (
    AsrError,
    CancelledError,
    DeadlineError,
    ServerError,
    UnavailableError,
)
from oasr_backend.models.base import FRAMES_PER_SECOND, Prepared, Recognizer, Transcript
from oasr_backend.request import Request
from oasr_backend.scheduler import Scheduler
from oasr_backend.segment import pieces as cut_to_pieces
from oasr_backend.spans import span

log = logging.getLogger(__name__)

Clock = Callable[[], float]
OnDone = Callable[[Result], None]
Outcome = Transcript | ServerError
"""What becomes of a row."""


class OfflineEngine:
    """Transcribes utterances in batches that its scheduler chooses; every one gets exactly one result."""

    def __init__(
        self,
        config: EngineConfig,
        recognizer: Recognizer,
        metrics: Metrics | None = None,
        clock: Clock = time.monotonic,
        preparer: Executor | None = None,
        rehearsers: Executor | None = None,
    ) -> None:
        self._config = config
        self._recognizer = recognizer
        self._max_piece_samples = recognizer.max_piece_frames * SAMPLE_RATE_HZ // FRAMES_PER_SECOND
        self._metrics = metrics if metrics is not None else MemoryMetrics()
        self._clock = clock
        self._costs = BatchCosts(config, recognizer, self._metrics, clock, self._rehearse)
        self._scheduler = Scheduler(config, clock, self._costs.table)
        self._preparer = preparer or ThreadPoolExecutor(1, thread_name_prefix="oasr-prepare")
        self._inbox = Inbox()
        self._jobs: dict[str, Job] = {}
        self._accepting = threading.Lock()
        self._deadlines = Deadlines()
        self._num_threads = config.parallel_batches or recognizer.parallel_batches
        self._rehearsers = rehearsers
        # Dispatched, and not yet taken by a thread.
        self._batches: deque[list[Row]] = deque()
        # A long utterance keeps two batches of rows in flight for each thread: one that runs and one that waits.
        most_rows = max(config.preferred_batch_size or (config.max_batch_size,))
        self._max_rows_in_flight = 2 * most_rows * self._num_threads
        self._backlog = Backlog(config.max_waiting, config.max_waiting_mb)
        self._metrics.watch("oasr_backlog_requests", lambda: self.num_unanswered)
        watch_runs(self._metrics, recognizer.runs)
        # Who holds it owns the scheduler and the jobs.
        self._desk = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"oasr-engine-{number}", daemon=True)
            for number in range(self._num_threads)
        ]

    def warm_up(self) -> None:
        """Run every batch size and measure it, before `start`; ConfigError for a `cost_table_path` without access."""
        self._costs.warm_up()
        if self._rehearsers is not None:
            self._rehearsers.shutdown()

    def _rehearse(self, num_rows: int, num_frames: int) -> None:
        """Run batches of noise side by side, one on each thread: they take longer than one alone."""
        if self._rehearsers is None:
            self._rehearsers = ThreadPoolExecutor(self._num_threads, "oasr-rehearse")
        batches = range(self._num_threads)
        list(
            self._rehearsers.map(lambda _: self._recognizer.rehearse(num_rows, num_frames), batches)
        )

    # Called from any thread.

    def start(self) -> None:
        """Start the engine's threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Accept nothing more, answer what was accepted, and stop."""
        self._backlog.refuse(
            UnavailableError("the engine is shutting down: send the request to another server")
        )
        self._inbox.leave(lambda: None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._preparer.shutdown()
        self._costs.save()

    def wait_for_room(self) -> None:
        """Return once the backlog is below `max_waiting` and `max_waiting_mb`, or nothing is accepted any more."""
        self._backlog.wait_for_room()

    def check_room(self) -> None:
        """Raise UnavailableError where the backlog is at `max_waiting` or `max_waiting_mb`."""
        self._backlog.check_room()

    def check(self, utterance: Utterance) -> None:
        """Raise ClientError where an utterance cannot be accepted whatever the load; looks at no sample."""
        check_sample_rate(utterance.sample_rate_hz)
        check_duration(len(utterance.samples), utterance.sample_rate_hz, self._config.max_audio_s)
        self._recognizer.check_options(utterance.options)

    def add_request(self, utterance: Utterance, on_done: OnDone) -> None:
        """Accept an utterance, whose samples must stay as they are; `on_done` gets its one result.

        That is in one of the engine's threads. Raises ClientError (see `check`), UnavailableError once closed, and
        ValueError for an id in use. It accepts beyond `max_waiting`: who must not calls `wait_for_room` or `check_room`
        first.
        """
        self.check(utterance)
        job = self._new_job(utterance, on_done)
        with self._accepting:
            if job.request_id in self._jobs:
                raise ValueError(f"request id {job.request_id!r} is already in the engine")
            self._backlog.accept(job.utterance.samples.nbytes)
            self._jobs[job.request_id] = job
        self._inbox.leave(lambda: self._accept(job))
        if self._prepares_at_once(job.utterance):
            self._prepare_next(job)  # here, while the samples are in the processor's cache

    def abort(self, request_id: str) -> None:
        """Answer an utterance with CancelledError, unless it is answered already; KeyError for an unknown id."""
        job = self._jobs[request_id]
        self._inbox.leave(lambda: self._fail(job, CancelledError("the request was cancelled")))

    @property
    def num_unanswered(self) -> int:
        """Utterances accepted and not yet answered."""
        return self._backlog.num_unanswered

    def _new_job(self, utterance: Utterance, on_done: OnDone) -> Job:
        now = self._clock()
        samples = np.asarray(utterance.samples, dtype=np.float32)
        options = replace(utterance.options, speech_frames=self._config.job_size == "vad")
        return Job(
            replace(utterance, samples=samples, options=options),
            on_done,
            duration_s=len(samples) / utterance.sample_rate_hz,
            accepted_at=now,
            deadline_at=now + utterance.deadline_s,
            asked_at=now,
        )

    # Called from the preparing thread, or from a caller's.

    def _prepare_next(self, job: Job) -> None:
        """Prepare one more piece of a job and leave it to the engine, unless nobody waits for it any more."""
        if self._is_gone(job):
            return
        try:
            row, is_last = self._next_row(job)
        except AsrError as error:
            failure: AsrError = error
        except Exception as error:
            log.exception("request %s: its audio could not be prepared", job.request_id)
            failure = ServerError(
                f"request {job.request_id}: preparing the audio failed: {error!r}"
            )
        else:
            self._inbox.leave(lambda: self._enqueue(job, row, is_last))
            return
        self._inbox.leave(lambda: self._fail(job, failure))

    def _next_row(self, job: Job) -> tuple[Row, bool]:
        pieces = job.pieces or self._open(job)
        job.pieces = pieces
        piece, is_last = pieces.take()
        with span("prepare"):
            prepared = self._recognizer.prepare(piece.samples, job.utterance.options)
        return Row(job, piece.start_s, prepared), is_last

    def _open(self, job: Job) -> Pieces:
        utterance = job.utterance
        check_samples(utterance.samples)
        reader = AudioReader(utterance.samples, utterance.sample_rate_hz)
        return Pieces(cut_to_pieces(reader, self._max_piece_samples, self._recognizer.cut))

    # Called from the engine's threads, away from the desk.

    def _run_batch(self, rows: Sequence[Row]) -> None:
        """Run a batch and leave what became of each row for who is at the desk next; it never raises."""
        rows = [row for row in rows if not self._is_gone(row.job)]
        if not rows:
            return
        started_at = self._clock()
        try:
            with span("step"):
                outcomes = self._transcribe(rows)
        except BaseException as error:
            log.exception("a batch of %d was ended", len(rows))
            outcomes = [ServerError(f"the batch was ended by {error!r}")] * len(rows)
        step_s = self._clock() - started_at
        self._inbox.leave(lambda: self._settle(rows, outcomes, step_s))

    def _transcribe(self, rows: Sequence[Row]) -> Sequence[Outcome]:
        """Transcribe a batch; where it fails, each row alone, so that only the guilty one fails."""
        try:
            transcripts = self._recognizer.transcribe([r.prepared for r in rows if r.prepared])
            assert len(transcripts) == len(rows), (
                f"{len(transcripts)} transcripts of {len(rows)} rows"
            )
            return transcripts
        except Exception as error:
            ids = ", ".join(row.job.request_id for row in rows)
            log.exception("a batch of %d failed (requests %s)", len(rows), ids)
            if len(rows) == 1:
                return [ServerError(f"request {ids}: transcribing failed: {error!r}")]
        return [self._transcribe([row])[0] for row in rows]

    def _is_gone(self, job: Job) -> bool:
        """Tell whether nobody waits for a job any more; who is at the desk next then answers it so."""
        if job.is_answered:
            return True
        is_cancelled = job.is_cancelled(self._clock())
        if is_cancelled:
            self._inbox.leave(lambda: self._fail(job, CancelledError("the request was cancelled")))
        return is_cancelled

    def _run(self) -> None:
        """Be one of the engine's threads: take a batch at the desk, run it beside the others', and come back.

        So no batch and no answer waits for another thread to wake. One thread at a time is at the desk; where nothing
        is to run it waits there for commands, and the others wait for the desk.
        """
        while True:
            with self._desk:
                try:
                    rows = self._next_batch()
                except Exception as error:
                    log.exception("the engine has stopped on a fault of its own")
                    self._fail_everything(error)
                    return
            if rows is None:
                return
            self._run_batch(rows)

    # Called at the desk.

    def _next_batch(self) -> list[Row] | None:
        """Return what runs next, once there is anything; None where nothing will be any more."""
        is_busy = True
        while True:
            self.take_commands(0.0 if is_busy else self._seconds_to_wakeup())
            is_busy = bool(self._batches) or self._choose()
            if self._batches:
                rows = self._batches.popleft()
                self._note_start(rows)
                return rows
            if self._backlog.is_done:
                return None

    def take_commands(self, timeout_s: float | None = 0.0) -> None:
        """Carry out what other threads have left."""
        for command in self._inbox.take(timeout_s):
            command()

    def step(self) -> bool:
        """Run what the scheduler dispatches; tell whether that was anything. For who drives the engine by hand."""
        is_any = self._choose()
        while self._batches:
            rows = self._batches.popleft()
            self._note_start(rows)
            self._run_batch(rows)
        return is_any

    def _choose(self) -> bool:
        """Have the scheduler dispatch a batch; tell whether it did."""
        self._expire()
        with span("schedule"):
            batch = self._scheduler.schedule().offline_batch
        # A forced batch may lie between the rungs: it then runs as several that do not.
        for part in self._scheduler.split_offline_batch(batch):
            rows = [row for row in map(_row_of, part) if not row.job.is_answered]
            if rows:
                self._batches.append(rows)
        return bool(batch)

    def _seconds_to_wakeup(self) -> float | None:
        times = [self._scheduler.next_wakeup(), self._deadlines.next(self._jobs)]
        wakeup_at = min((t for t in times if t is not None), default=inf)
        return None if wakeup_at == inf else max(0.0, wakeup_at - self._clock())

    def _expire(self) -> None:
        now = self._clock()
        for request_id in self._deadlines.passed(now, self._jobs):
            job = self._jobs[request_id]
            self._fail(
                job,
                DeadlineError(
                    f"the request is not done after {(now - job.accepted_at) * 1000:.0f} ms; limit is "
                    f"{job.utterance.deadline_s * 1000:.0f} ms (deadline_ms): raise it or send less load"
                ),
            )

    def _accept(self, job: Job) -> None:
        if job.deadline_at < inf:
            self._deadlines.add(job.deadline_at, job.request_id, self._jobs)
        if not self._prepares_at_once(job.utterance):
            self._preparer.submit(self._prepare_next, job)

    def _prepares_at_once(self, utterance: Utterance) -> bool:
        """Tell whether an utterance needs no thread of its own to be prepared: one piece, as the model wants it."""
        is_short = len(utterance.samples) <= self._max_piece_samples
        is_plain = (
            utterance.sample_rate_hz == SAMPLE_RATE_HZ and not utterance.options.speech_frames
        )
        return self._recognizer.prepares_at_once and is_short and is_plain

    def _enqueue(self, job: Job, row: Row, is_last: bool) -> None:
        """Take a prepared row: hand it to the scheduler, and ask for the next one."""
        if job.is_answered:
            return
        job.is_preparing = False
        job.is_exhausted = is_last
        job.rows.append(row)
        prepared = row.prepared
        assert prepared is not None
        if prepared.has_speech:
            self._schedule(row, prepared)
        else:
            row.finish(Transcript(""))
        self._go_on(job)

    def _schedule(self, row: Row, prepared: Prepared) -> None:
        job = row.job
        row_id = f"{job.request_id}/{len(job.rows) - 1}"
        job.waiting_ids.add(row_id)
        job.num_unfinished += 1
        self._scheduler.add_request(
            Request(
                row_id,
                self._counted(prepared),
                priority=job.utterance.priority,
                tenant=job.utterance.tenant,
                language=job.utterance.options.language,
                speech_frames=prepared.speech_frames,
                # A later piece of a long utterance has not waited since the first one did.
                arrival_time=job.accepted_at if len(job.rows) == 1 else None,
                payload=row,
            )
        )

    def _counted(self, prepared: Prepared) -> int:
        """Return what the scheduler counts: what a row costs, and its length where all rows cost the same."""
        if self._recognizer.fixed_window_frames:
            return prepared.num_frames
        return self._recognizer.window_frames(prepared.num_frames)

    def _counted_in(self, rows: Sequence[Row]) -> list[int]:
        return [self._counted(row.prepared) for row in rows if row.prepared is not None]

    def _go_on(self, job: Job) -> None:
        """Answer a job that is complete; else see that enough of it is in flight."""
        if job.is_complete:
            self._answer(job, job.result())
        elif not (job.is_exhausted or job.is_preparing) and (
            job.num_unfinished < self._max_rows_in_flight
        ):
            job.is_preparing = True
            self._preparer.submit(self._prepare_next, job)

    def _note_start(self, rows: Sequence[Row]) -> None:
        started_at = self._clock()
        for row in rows:
            if row.job.first_run_at is None:
                row.job.first_run_at = started_at
                self._metrics.observe("oasr_queue_wait_seconds", started_at - row.job.accepted_at)

    def _settle(self, rows: Sequence[Row], outcomes: Sequence[Outcome], step_s: float) -> None:
        self._metrics.observe("oasr_batch_size", len(rows))
        self._metrics.observe("oasr_step_seconds", step_s)
        self._learn(rows, outcomes, step_s)
        for row, outcome in zip(rows, outcomes, strict=True):
            self._finish_row(row, outcome, step_s, len(rows))

    def _learn(self, rows: Sequence[Row], outcomes: Sequence[Outcome], step_s: float) -> None:
        """Teach the scheduler what a batch took, unless it failed and ran more than once, and what it gave."""
        if any(isinstance(outcome, ServerError) for outcome in outcomes):
            return
        frames = self._counted_in(rows)
        longest = self._config.fixed_window_frames or max(frames)
        self._costs.observe(len(rows), longest, step_s)
        for num_frames, outcome in zip(frames, outcomes, strict=True):
            if isinstance(outcome, Transcript):
                duration_s = num_frames / FRAMES_PER_SECOND
                self._scheduler.learn_output(outcome.language, duration_s, len(outcome.tokens))

    def _finish_row(self, row: Row, outcome: Outcome, step_s: float, batch_size: int) -> None:
        job = row.job
        if job.is_answered:
            return
        job.num_unfinished -= 1
        job.compute_s += step_s
        job.batch_sizes.append(batch_size)
        if isinstance(outcome, ServerError):
            self._fail(job, outcome)
        else:
            row.finish(outcome)
            self._go_on(job)

    def _fail(self, job: Job, error: AsrError) -> None:
        if not job.is_answered:
            self._answer(job, Result(job.request_id, None, error, duration_s=job.duration_s))

    def _answer(self, job: Job, result: Result) -> None:
        """Give a job its one result and forget it."""
        assert not job.is_answered, f"request {job.request_id} was about to be answered twice"
        job.is_answered = True
        for row_id in job.waiting_ids:
            self._scheduler.abort_request(row_id)
        del self._jobs[job.request_id]
        self._backlog.answered(job.utterance.samples.nbytes)
        try:
            job.on_done(result)
        except Exception:
            log.exception("request %s: its result could not be delivered", job.request_id)
        job.release()
        self._count(job, result)

    def _count(self, job: Job, result: Result) -> None:
        outcome = "ok" if result.error is None else result.error.outcome
        self._metrics.add("oasr_requests_total", 1, outcome=outcome)
        if result.error is None:
            self._metrics.add("oasr_audio_seconds_total", job.duration_s)

    def _fail_everything(self, error: Exception) -> None:
        self._backlog.refuse(
            UnavailableError(f"the engine has stopped: {error!r}: reload the model")
        )
        with self._accepting:  # who was accepted a moment ago is in the table now
            jobs = list(self._jobs.values())
        for job in jobs:
            text = f"request {job.request_id}: the engine stopped: {error!r}"
            with contextlib.suppress(Exception):  # what has failed may fail again
                self._fail(job, ServerError(text))


def _row_of(request: Request) -> Row:
    row = request.payload
    assert isinstance(row, Row)
    row.job.waiting_ids.discard(request.request_id)
    return row
