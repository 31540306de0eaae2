"""What the engine owes every utterance: exactly one result, the right one, whatever its neighbours do."""

import contextlib
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.engine.inbox import Inbox
from oasr_backend.engine.job import ASK_EVERY_S, Job, Utterance
from oasr_backend.engine.metrics import MemoryMetrics
from oasr_backend.engine.offline import OfflineEngine
from oasr_backend.errors import (
    CancelledError,
    ClientError,
    DeadlineError,
    ServerError,
    UnavailableError,
)
from oasr_backend.models.base import TranscribeOptions, Transcript
from tests.fakes import POISON, UNPREPARABLE, FakeClock, FakeRecognizer, InlineExecutor


class Driver:
    """An engine whose steps the test takes itself, and every result that it gave."""

    def __init__(self, recognizer=None, **options):
        self.clock = FakeClock()
        self.recognizer = recognizer or FakeRecognizer(self.clock)
        self.recognizer.clock = self.clock
        self.metrics = MemoryMetrics()
        config = EngineConfig(
            **{"max_batch_size": 4, "max_wait_time": 0.2, "schedule_policy": "fcfs", **options}
        )
        self.engine = OfflineEngine(
            config, self.recognizer, self.metrics, self.clock, InlineExecutor()
        )
        self.results = {}

    def add(self, name, num_samples, first_sample=0.5, **options):
        samples = np.full(num_samples, 0.5, np.float32)
        samples[:1] = first_sample
        self.engine.add_request(Utterance(name, samples, **options), self.take)

    def take(self, result):
        assert result.request_id not in self.results, "answered twice"
        self.results[result.request_id] = result

    def run(self):
        self.engine.take_commands()
        while self.engine.step():
            self.engine.take_commands()
        self.engine.take_commands()

    def texts(self):
        return {name: r.transcript and r.transcript.text for name, r in self.results.items()}

    def errors(self):
        return {name: (type(r.error), str(r.error)) for name, r in self.results.items() if r.error}


def test_utterances_that_wait_together_run_as_one_batch():
    driver = Driver()
    for name in "abcde":
        driver.add(name, 1600)
    driver.run()
    assert driver.recognizer.batches == [[1600] * 4, [1600]]
    assert driver.texts() == dict.fromkeys("abcde", "1600")
    assert driver.metrics.observations["oasr_batch_size"] == [4, 1]
    assert driver.metrics.totals[("oasr_requests_total", "ok")] == 5
    assert driver.metrics.totals[("oasr_audio_seconds_total",)] == pytest.approx(0.5)
    assert driver.engine.num_unanswered == 0


def test_a_forced_batch_between_the_rungs_runs_in_rungs():
    driver = Driver(preferred_batch_size=(1, 2, 4))
    for index, name in enumerate("abcdefg"):
        driver.add(name, 1600 + index)
    driver.clock.advance(1)
    driver.run()
    assert driver.metrics.observations["oasr_batch_size"] == [4, 2, 1]
    assert driver.texts() == {name: str(1600 + index) for index, name in enumerate("abcdefg")}


def test_a_result_says_how_long_it_waited_and_ran():
    driver = Driver(max_batch_size=1)
    driver.add("a", 1600)
    driver.add("b", 1600)
    driver.run()
    result = driver.results["b"]
    assert (result.queue_s, result.compute_s) == pytest.approx((0.11, 0.11))
    assert result.batch_sizes == (1,)
    assert result.duration_s == pytest.approx(0.1)


@pytest.mark.parametrize("guilty", range(4))
def test_a_failing_batch_fails_only_the_guilty_one(guilty):
    driver = Driver()
    for index in range(4):
        driver.add(str(index), 1600 + index, first_sample=POISON if index == guilty else 0.5)
    driver.run()
    expected = {str(i): str(1600 + i) for i in range(4)} | {str(guilty): None}
    assert driver.texts() == expected
    assert driver.errors() == {
        str(guilty): (
            ServerError,
            f"request {guilty}: transcribing failed: RuntimeError('poisoned')",
        )
    }


def test_a_recognizer_that_loses_a_row_loses_no_request():
    class Forgetful(FakeRecognizer):
        def transcribe(self, batch):
            return super().transcribe(batch)[: 1 if len(batch) > 1 else None]

    driver = Driver(Forgetful())
    driver.add("a", 1600)
    driver.add("b", 3200)
    driver.run()
    assert driver.texts() == {"a": "1600", "b": "3200"}


def test_audio_that_cannot_be_prepared_fails_alone():
    driver = Driver()
    driver.add("a", 1600)
    driver.add("b", 1600, first_sample=UNPREPARABLE)
    driver.add("c", 1600, first_sample=float("nan"))
    driver.run()
    assert driver.texts() == {"a": "1600", "b": None, "c": None}
    assert driver.errors()["b"] == (
        ServerError,
        "request b: preparing the audio failed: RuntimeError('no features')",
    )
    assert driver.errors()["c"][0] is ClientError


def test_silence_and_nothing_are_answered_without_a_batch():
    driver = Driver()
    driver.add("nothing", 0)
    driver.engine.add_request(Utterance("silence", np.zeros(8000, np.float32)), driver.take)
    driver.run()
    assert driver.texts() == {"nothing": "", "silence": ""}
    assert driver.recognizer.batches == []


def test_a_long_utterance_runs_in_pieces_and_is_joined_in_order():
    driver = Driver()
    driver.add("long", 3 * 16000 + 500)
    driver.run()
    assert driver.texts() == {"long": "16000 16000 16000 500"}
    assert driver.results["long"].transcript.tokens == (16000, 16000, 16000, 500)
    assert driver.recognizer.batches == [[500, 16000, 16000, 16000]]


def test_a_long_utterance_keeps_at_most_two_batches_in_flight():
    driver = Driver(max_batch_size=2)
    driver.add("long", 20 * 16000)
    driver.engine.take_commands()
    assert driver.engine._scheduler.num_waiting == 4
    driver.add("short", 1600)
    driver.run()
    assert driver.texts()["short"] == "1600"
    assert driver.recognizer.batches.index([1600, 16000]) == 2
    assert driver.texts()["long"] == " ".join(["16000"] * 20)


def test_silent_pieces_of_a_long_utterance_leave_no_gap_in_the_text():
    driver = Driver(max_batch_size=1)
    samples = np.full(4 * 16000, 0.5, np.float32)
    samples[16000:48000] = 0
    driver.engine.add_request(Utterance("long", samples), driver.take)
    driver.run()
    assert driver.texts() == {"long": "16000 16000"}


def test_a_long_utterance_whose_piece_fails_gets_one_error_and_its_other_pieces_do_not_run():
    driver = Driver(max_batch_size=1)
    samples = np.full(10 * 16000, 0.5, np.float32)
    samples[2 * 16000] = POISON
    driver.engine.add_request(Utterance("long", samples), driver.take)
    driver.run()
    assert driver.errors()["long"][0] is ServerError
    assert len(driver.recognizer.batches) == 3
    assert driver.engine.num_unanswered == 0
    assert not driver.engine._scheduler.has_pending()


def test_a_cancelled_request_never_runs():
    driver = Driver()
    driver.add("kept", 1600)
    driver.add("cancelled", 1700, is_cancelled=lambda: True)
    driver.add("aborted", 1800)
    driver.engine.abort("aborted")
    driver.clock.advance(ASK_EVERY_S)
    driver.run()
    assert driver.recognizer.batches == [[1600]]
    assert driver.errors() == {
        "cancelled": (CancelledError, "the request was cancelled"),
        "aborted": (CancelledError, "the request was cancelled"),
    }


def test_aborting_an_unknown_request_is_a_key_error():
    with pytest.raises(KeyError):
        Driver().engine.abort("nobody")


def test_a_request_that_passes_its_deadline_is_never_run():
    driver = Driver(max_batch_size=1)
    driver.add("first", 1600)
    driver.add("late", 1700, deadline_s=0.1)
    driver.run()
    assert driver.recognizer.batches == [[1600]]
    assert driver.errors()["late"] == (
        DeadlineError,
        "the request is not done after 110 ms; limit is 100 ms (deadline_ms): raise it or send less load",
    )
    assert driver.metrics.totals[("oasr_requests_total", "timed_out")] == 1


def test_nothing_of_an_answered_request_is_kept_until_its_deadline():
    driver = Driver()
    for index in range(1000):
        driver.add(str(index), 1600, deadline_s=1e9)
        job = weakref.ref(driver.engine._jobs[str(index)])
        driver.run()
        assert job() is None
    assert len(driver.engine._deadlines._heap) < 200


def test_a_deadline_centuries_away_stops_nothing():
    inbox = Inbox()
    inbox.leave(print)
    assert list(inbox.take(2.0**63)) == [print]  # Python refuses to wait that long


def test_not_knowing_whether_a_request_is_cancelled_harms_nobody():
    def broken():
        raise RuntimeError("no answer")

    driver = Driver()
    driver.add("a", 1600, is_cancelled=broken)
    driver.add("b", 1600)
    driver.clock.advance(ASK_EVERY_S)
    driver.run()
    assert driver.texts() == {"a": "1600", "b": "1600"}


def test_what_is_cancelled_is_not_prepared():
    driver = Driver()
    driver.add("a", 1600, first_sample=UNPREPARABLE, is_cancelled=lambda: True)
    driver.clock.advance(ASK_EVERY_S)
    driver.run()
    assert driver.errors() == {"a": (CancelledError, "the request was cancelled")}


def test_who_waits_is_asked_seldom_whether_he_still_wants_an_answer():
    asked_at = []
    driver = Driver(max_batch_size=1)
    for number in range(10):
        driver.add(
            str(number), 1600, is_cancelled=lambda: asked_at.append(driver.clock()) is not None
        )
    started_at = driver.clock()
    driver.run()
    assert (
        len(driver.recognizer.batches) == 10
    )  # of 0.11 s each: 3 begin within a quarter of a second
    assert len(asked_at) == 7
    assert min(asked_at) - started_at >= ASK_EVERY_S


def test_who_was_asked_is_not_asked_again_at_once():
    asked = []
    utterance = Utterance("a", np.zeros(0, np.float32), is_cancelled=lambda: asked.append(1))
    job = Job(utterance, print, duration_s=0.0, accepted_at=5.0, deadline_at=np.inf, asked_at=5.0)
    for half in range(7):
        job.is_cancelled(5.0 + ASK_EVERY_S * half / 2)
    assert len(asked) == 3


def test_a_result_is_delivered_before_it_is_counted():
    driver = Driver()

    def broken(*arguments, **labels):
        raise RuntimeError("no metrics")

    driver.metrics.add = broken
    driver.add("a", 1600)
    with pytest.raises(RuntimeError):
        driver.run()
    assert driver.texts() == {"a": "1600"}


def test_room_is_counted_in_megabytes_too():
    gate = Gate()
    engine = threaded_engine(gate, max_batch_size=1, max_waiting_mb=1)
    engine.add_request(ones("a", 1 << 18), lambda result: None)  # 1 MB
    waiter = threading.Thread(target=engine.wait_for_room)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    gate.opened.set()
    waiter.join(30)
    assert not waiter.is_alive()
    engine.close()


def test_priorities_reach_the_scheduler():
    driver = Driver(max_batch_size=1)
    driver.add("patient", 1600, priority=5)
    driver.add("urgent", 1700)
    driver.run()
    assert driver.recognizer.batches == [[1700], [1600]]


@pytest.mark.parametrize(
    ("job_size", "order"),
    [("frames", [[4800], [9600], [12800]]), ("vad", [[12800], [4800], [9600]])],
)
def test_jobs_may_be_ordered_by_their_speech_alone(job_size, order):
    driver = Driver(max_batch_size=1, schedule_policy="sjf", job_size=job_size)
    driver.add("chatty", 9600)
    driver.add("brief", 4800)
    mostly_silent = np.zeros(12800, np.float32)
    mostly_silent[:1600] = 0.5
    driver.engine.add_request(Utterance("silent", mostly_silent), driver.take)
    driver.run()
    assert driver.recognizer.batches == order


def test_a_recognizer_that_counts_no_speech_has_its_jobs_ordered_by_length():
    class Deaf(FakeRecognizer):
        def prepare(self, samples, options):
            return replace(super().prepare(samples, options), speech_frames=None)

    driver = Driver(Deaf(), max_batch_size=1, schedule_policy="sjf", job_size="vad")
    driver.add("long", 9600)
    driver.add("short", 4800)
    driver.run()
    assert driver.recognizer.batches == [[4800], [9600]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"num_samples": 3 * 16000},
            "audio is 3.0 s; limit is 2.0 s (max_audio_s): split it or raise the limit",
        ),
        (
            {"num_samples": 10, "options": TranscribeOptions(language="fr")},
            "language is 'fr'; it must be 'en'",
        ),
    ],
)
def test_what_cannot_be_accepted_is_refused_before_it_is_queued(options, text):
    driver = Driver(max_audio_s=2.0)
    with pytest.raises(ClientError) as caught:
        driver.add("a", **options)
    assert str(caught.value) == text
    assert driver.engine.num_unanswered == 0


def test_an_id_in_use_is_refused():
    driver = Driver()
    driver.add("a", 1600)
    with pytest.raises(ValueError) as caught:
        driver.add("a", 1600)
    assert str(caught.value) == "request id 'a' is already in the engine"


def test_a_callback_that_raises_harms_nobody():
    driver = Driver()

    def explode(result):
        raise RuntimeError("no receiver")

    driver.engine.add_request(Utterance("a", np.ones(1600, np.float32)), explode)
    driver.add("b", 1600)
    driver.run()
    assert driver.texts() == {"b": "1600"}
    assert driver.engine.num_unanswered == 0


class Gate(FakeRecognizer):
    """Holds its first batch until the test opens it."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.opened = threading.Event()

    def transcribe(self, batch):
        self.entered.set()
        assert self.opened.wait(30)
        return [Transcript(str(piece.inputs.shape[1])) for piece in batch]


def threaded_engine(recognizer, **options):
    engine = OfflineEngine(EngineConfig(schedule_policy="fcfs", **options), recognizer)
    engine.start()
    return engine


def ones(name, num_samples=1600):
    return Utterance(name, np.ones(num_samples, np.float32))


def test_room_is_waited_for_while_the_backlog_is_full():
    gate = Gate()
    engine = threaded_engine(gate, max_batch_size=1, max_waiting=2)
    results = []
    for name in "ab":
        engine.wait_for_room()
        engine.add_request(ones(name), results.append)
    assert gate.entered.wait(30)
    waiter = threading.Thread(target=engine.wait_for_room)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    gate.opened.set()
    waiter.join(30)
    assert not waiter.is_alive()
    engine.close()
    assert sorted(r.request_id for r in results) == ["a", "b"]


def test_a_full_backlog_can_be_refused_instead():
    driver = Driver(max_waiting=2, max_waiting_mb=1)
    driver.engine.check_room()
    driver.add("a", 200_000)
    driver.add("b", 70_000)
    with pytest.raises(UnavailableError, match=r"^2 utterances are waiting; limit is 2 \(max_wai"):
        driver.engine.check_room()
    driver.run()
    driver.engine.check_room()
    driver.add("c", 300_000)
    with pytest.raises(
        UnavailableError, match=r"1 MB are waiting; limit is 1 MB \(max_waiting_mb\)"
    ):
        driver.engine.check_room()


def test_closing_answers_what_was_accepted_and_refuses_what_comes_after():
    gate = Gate()
    engine = threaded_engine(gate, max_batch_size=2)
    results = []
    for index in range(9):
        engine.add_request(ones(str(index)), results.append)
    assert gate.entered.wait(30)
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.opened.set()
    closer.join(30)
    assert sorted(r.request_id for r in results) == [str(i) for i in range(9)]
    assert all(r.error is None for r in results)
    with pytest.raises(UnavailableError) as caught:
        engine.add_request(ones("late"), results.append)
    assert str(caught.value) == "the engine is shutting down: send the request to another server"


def test_held_work_runs_by_itself_once_it_is_due():
    engine = threaded_engine(
        FakeRecognizer(), max_batch_size=4, preferred_batch_size=(4,), max_wait_time=0.02
    )
    answered = threading.Event()
    engine.add_request(ones("a"), lambda result: answered.set())
    assert answered.wait(30)
    engine.close()


def test_an_engine_that_breaks_answers_everybody_and_refuses_from_then_on():
    gate = Gate()
    engine = threaded_engine(gate, max_batch_size=1)
    results = []
    for name in "abc":
        engine.add_request(ones(name), results.append)
    assert gate.entered.wait(30)

    def broken():
        raise RuntimeError("broken")

    engine._scheduler.schedule = broken
    gate.opened.set()
    engine._threads[0].join(30)
    assert [r.error is None for r in results] == [True, False, False]
    assert str(results[1].error) == "request b: the engine stopped: RuntimeError('broken')"
    engine.wait_for_room()
    with pytest.raises(UnavailableError) as caught:
        engine.add_request(ones("d"), results.append)
    assert str(caught.value) == "the engine has stopped: RuntimeError('broken'): reload the model"
    engine.close()


def test_many_threads_may_add_at_once_and_everyone_is_answered_once():
    engine = threaded_engine(FakeRecognizer(), max_batch_size=8, max_waiting=10)
    results = []

    def client(number):
        for index in range(25):
            engine.wait_for_room()
            engine.add_request(ones(f"{number}-{index}", 1600 + number), results.append)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.close()
    assert len(results) == len({r.request_id for r in results}) == 200
    assert all(r.transcript.text == str(1600 + int(r.request_id[0])) for r in results)


class Meeting(FakeRecognizer):
    """Lets a batch go on only once another one runs beside it."""

    def __init__(self):
        super().__init__()
        self.barrier = threading.Barrier(2, timeout=30)

    def transcribe(self, batch):
        self.barrier.wait()
        return super().transcribe(batch)


def test_batches_run_side_by_side_where_workers_are_there():
    engine = threaded_engine(Meeting(), max_batch_size=1, parallel_batches=2)
    results = []
    for name in "abcd":
        engine.add_request(ones(name), results.append)
    engine.close()
    assert sorted(r.request_id for r in results) == list("abcd")
    assert not [r.error for r in results if r.error]


class Crowd(FakeRecognizer):
    """Knows how many batches ran at the same time, at most; the first two wait for each other."""

    def __init__(self):
        super().__init__()
        self.both = threading.Barrier(2, timeout=30)
        self.lock = threading.Lock()
        self.num_seen = self.num_inside = self.most_inside = 0

    def transcribe(self, batch):
        with self.lock:
            self.num_seen += 1
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
            waits = self.num_seen <= 2
        if waits:
            self.both.wait()
        transcripts = super().transcribe(batch)
        with self.lock:
            self.num_inside -= 1
        return transcripts


def test_no_more_batches_run_at_a_time_than_there_are_threads():
    crowd = Crowd()
    engine = threaded_engine(crowd, max_batch_size=1, parallel_batches=2)
    results = []
    for number in range(100):
        engine.add_request(ones(str(number)), results.append)
    engine.close()
    assert crowd.most_inside == 2
    assert len({r.request_id for r in results}) == len(results) == 100


@pytest.mark.parametrize("broken", ["schedule", "next_wakeup"])
def test_an_engine_of_many_threads_that_breaks_answers_everybody_and_stops(broken):
    gate = Gate()
    engine = threaded_engine(gate, max_batch_size=1, parallel_batches=3)
    results = []
    engine.add_request(ones("first"), results.append)
    assert gate.entered.wait(30)

    def fails():
        raise RuntimeError("broken")

    setattr(engine._scheduler, broken, fails)
    accepted = ["first"]
    with contextlib.suppress(UnavailableError):  # where a thread has found it broken already
        engine.add_request(ones("second"), results.append)
        accepted.append("second")
    gate.opened.set()
    for thread in engine._threads:
        thread.join(30)
        assert not thread.is_alive()
    engine.close()
    assert sorted(r.request_id for r in results) == accepted


def test_many_threads_are_answered_once_by_many_workers():
    engine = threaded_engine(FakeRecognizer(), max_batch_size=4, parallel_batches=4)
    results = []
    for number in range(200):
        engine.add_request(ones(f"{number}", 1600 + number), results.append)
    engine.close()
    assert len(results) == len({r.request_id for r in results}) == 200
    assert all(r.transcript.text == str(1600 + int(r.request_id)) for r in results)


def test_how_a_model_has_run_is_shown_by_kind():
    driver = Driver()
    driver.add("one", 160)
    driver.run()
    shown = driver.metrics.watched[("oasr_graph_runs", "replay")]
    assert shown() == len(driver.recognizer.batches) == 1
