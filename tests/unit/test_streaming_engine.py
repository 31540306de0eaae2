"""The engine of streams, driven step by step with a fake clock and a model whose answers can be calculated."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.engine.batches import best_rows, cut
from oasr_backend.engine.metrics import MemoryMetrics
from oasr_backend.engine.stream import Chunk, StreamRequest
from oasr_backend.engine.streaming import StreamingEngine
from oasr_backend.errors import (
    CancelledError,
    ClientError,
    ConfigError,
    ServerError,
    UnavailableError,
)
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.scheduler.ladder import Ladder
from tests.fakes import (
    POISON,
    UNPREPARABLE,
    FakeClock,
    FakeStreamingModel,
    InlineExecutor,
)

CHUNK = 1600


def speech(*words, size=CHUNK):
    """Chunks that the fake model hears as those whole numbers."""
    return np.repeat(np.array(words, np.float32) / 100, size)


class Harness:
    """An engine without its thread, and everything that it has answered, by stream."""

    def __init__(self, num_blocks=100, max_chunks=1000, **options):
        self.clock = FakeClock()
        self.model = FakeStreamingModel(self.clock, num_blocks, max_chunks)
        self.metrics = MemoryMetrics()
        defaults = {"max_batch_size": 4, "max_waiting": 2}
        self.engine = StreamingEngine(
            EngineConfig(**{**defaults, **options}),
            self.model,
            self.metrics,
            self.clock,
            InlineExecutor(),
        )
        self.results = {}

    def begin(self, name, **asked):
        self.engine.add_request(StreamRequest(name, **asked))

    def feed(self, name, samples, is_last=False, **chunk):
        results = self.results.setdefault(name, [])
        self.engine.feed_chunk(name, Chunk(samples, is_last, **chunk), results.append)

    def run(self, max_steps=100):
        self.engine.take_commands()
        for _ in range(max_steps):
            if not self.engine.step():
                return
            self.engine.take_commands()
        raise AssertionError("the engine never came to rest")

    def texts(self, name):
        return [r.partial.transcript.text if r.partial else r.error for r in self.results[name]]

    def errors(self, name):
        return [str(r.error) for r in self.results[name] if r.error is not None]


def test_a_chunk_is_answered_when_all_that_its_audio_completes_has_run():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1)[:1000])
    h.run()
    h.feed("a", np.concatenate([speech(1)[1000:], speech(2, 3)]))
    h.feed("a", speech(4)[:10], is_last=True)
    h.run()
    assert h.texts("a") == ["", "1 2 3", "1 2 3 4"]
    assert [r.is_final for r in h.results["a"]] == [False, False, True]
    assert [r.num_encoder_chunks for r in h.results["a"]] == [0, 3, 4]
    assert h.results["a"][1].duration_s == pytest.approx(0.3)
    assert h.engine.num_open == 0


def test_an_engine_that_looks_while_a_last_chunk_comes_in_waits_for_its_audio():
    h = Harness()
    looked = threading.Event()
    go_on = h.engine._go_on

    def watched(live):
        go_on(live)
        looked.set()

    h.engine._go_on = watched
    h.engine.start()
    h.begin("a")
    live = h.engine._live["a"]
    accept = live.stream.accept

    def slow(samples):
        looked.clear()
        h.engine._inbox.leave(lambda: h.engine._look_at(live))
        assert looked.wait(10), "the engine's thread found the stream ended and waits for the lock"
        accept(samples)

    live.stream.accept = slow
    h.feed("a", speech(1, 2), is_last=True)
    h.engine.close()
    assert h.texts("a") == ["1 2"]
    assert h.results["a"][0].is_final


def test_a_chunk_that_completes_nothing_is_answered_before_feeding_returns():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1)[:1000])
    assert h.texts("a") == [""]
    h.feed("a", speech(1)[:600])
    h.feed("a", speech(2)[:10])
    assert h.texts("a") == [""], "behind one that waits, it waits too"
    h.run()
    h.feed("a", speech(2)[:10])
    assert h.texts("a") == ["", "1", "1", "1"]
    h.feed("a", speech(), is_last=True)
    assert len(h.results["a"]) == 4
    h.run()
    assert h.results["a"][4].is_final


def test_text_that_cannot_be_made_at_once_ends_the_stream():
    h = Harness()
    h.begin("a")

    def broken(words):
        raise RuntimeError("no text")

    h.engine._live["a"].stream.partial = broken
    h.feed("a", speech(1)[:10])
    assert h.errors("a") == ["stream a: making the text failed: RuntimeError('no text')"]
    h.run()
    assert h.engine.num_open == 0


def test_streams_at_different_offsets_share_a_forward_and_never_mix():
    h = Harness()
    for number, name in enumerate("abc"):
        h.begin(name)
        h.feed(name, speech(*range(10 * number, 10 * number + 2 + number)), is_last=True)
    h.run()
    assert [h.texts(name) for name in "abc"] == [["0 1"], ["10 11 12"], ["20 21 22 23"]]
    assert h.model.batches == [(3, 3), (3, 3), (2, 2), (1, 1)]


def test_a_stream_without_audio_ends_at_once_with_no_text():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(), is_last=True)
    h.run()
    assert h.texts("a") == [""]
    assert h.results["a"][0].is_final


def test_beyond_the_pool_streams_wait_with_their_audio_and_run_once_admitted():
    h = Harness(max_streams=1)
    h.begin("a")
    h.begin("b")
    h.feed("b", speech(7), is_last=True)
    h.feed("a", speech(1))
    h.run()
    assert h.texts("a") == ["1"]
    assert h.results["b"] == []
    h.feed("a", speech(2), is_last=True)
    h.run()
    assert h.texts("b") == ["7"]


def test_beyond_the_limit_a_new_stream_is_refused_at_once():
    h = Harness(max_streams=1)
    for name in "abc":
        h.begin(name)
    with pytest.raises(UnavailableError) as error:
        h.begin("d")
    assert str(error.value) == (
        "3 streams are open; limit is 3 (max_streams and max_waiting): try again later, or raise one of them"
    )
    h.feed("a", speech(), is_last=True)
    h.run()
    h.begin("d")


def test_a_full_buffer_refuses_the_chunk_and_the_stream_goes_on():
    h = Harness(max_buffered_s=0.2)
    h.begin("a")
    h.feed("a", speech(1, 2))
    with pytest.raises(UnavailableError) as error:
        h.feed("a", speech(3))
    assert str(error.value) == (
        "0.3 s of the stream's audio wait; limit is 0.2 s (max_buffered_s): wait for answers before sending more, or "
        "raise the limit"
    )
    h.run()
    h.feed("a", speech(3), is_last=True)
    h.run()
    assert h.texts("a") == ["1 2", "1 2 3"]


def test_a_stream_that_is_given_up_answers_its_chunks_and_is_gone():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1, 2))
    h.engine.give_up("a")
    with pytest.raises(KeyError):
        h.feed("a", speech(3))
    h.run()
    assert h.texts("a") == ["1 2"]
    assert h.engine.num_open == 0
    h.begin("b")
    h.engine.give_up("b")
    h.run()
    assert h.engine.num_open == 0
    with pytest.raises(KeyError):
        h.engine.give_up("a")


def test_the_last_chunk_is_taken_though_the_buffer_is_full():
    h = Harness(max_buffered_s=0.2)
    h.begin("a")
    h.feed("a", speech(1, 2))
    h.feed("a", speech(3), is_last=True)
    h.run()
    assert h.texts("a") == ["1 2", "1 2 3"]


def test_a_buffer_that_holds_no_two_encoder_chunks_is_refused():
    with pytest.raises(ConfigError) as error:
        Harness(max_buffered_s=0.1)
    assert str(error.value) == (
        "max_buffered_s is 0.1; it must be at least 0.2, two encoder chunks of this model, or none would ever be "
        "whole: raise it"
    )


def test_a_chunk_that_no_waiting_can_make_fit_is_the_clients_mistake():
    h = Harness(max_buffered_s=0.2)
    h.begin("a")
    with pytest.raises(ClientError) as error:
        h.feed("a", speech(1, 2, 3))
    assert str(error.value) == (
        "the chunk lasts 0.3 s; limit is 0.2 s (max_buffered_s): send it as several, or raise the limit"
    )
    h.feed("a", speech(3), is_last=True)
    h.run()
    assert h.texts("a") == ["3"]


def test_a_new_start_on_a_live_id_begins_afresh():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1)[:100])
    h.feed("a", speech(1, 1))
    h.begin("a")
    h.feed("a", speech(2), is_last=True)
    h.run()
    assert h.texts("a")[0] == ""
    assert isinstance(h.results["a"][1].error, CancelledError)
    assert h.texts("a")[2] == "2"
    assert h.engine.num_open == 0


def test_starts_on_a_live_id_count_once_however_fast_they_come():
    h = Harness(max_streams=1)
    for name in "aaabb":
        h.begin(name)
    assert h.engine.num_open == 2
    h.run()
    assert h.engine.num_open == 2


def test_an_ended_stream_gets_its_text_though_the_next_of_its_id_has_begun():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1), is_last=True)
    h.begin("a")
    h.feed("a", speech(2), is_last=True)
    h.run()
    assert h.texts("a") == ["1", "2"]


@pytest.mark.parametrize("name", ["never", "ended"])
def test_a_chunk_of_no_live_stream_is_a_key_error(name):
    h = Harness()
    h.begin("ended")
    h.feed("ended", speech(1), is_last=True)
    with pytest.raises(KeyError):
        h.feed(name, speech(1))
    with pytest.raises(KeyError):
        h.engine.abort(name)


def test_who_sends_nothing_for_too_long_is_over():
    h = Harness(max_idle_s=5.0)
    h.begin("a")
    h.begin("b")
    h.run()
    h.clock.advance(4.0)
    h.feed("b", speech(1))
    h.run()
    h.clock.advance(1.5)
    assert h.engine._seconds_to_wakeup() == 0.0
    h.run()
    assert h.engine.num_open == 1
    with pytest.raises(KeyError):
        h.feed("a", speech(1))
    h.feed("b", speech(2))
    h.run()
    assert h.texts("b") == ["1", "1 2"]
    assert h.model.num_blocks_used == 1


def test_who_waits_for_an_answer_does_not_idle():
    h = Harness(max_idle_s=5.0, max_streams=1)
    h.begin("a")
    h.feed("a", speech(9))
    h.begin("b")
    h.feed("b", speech(1))
    h.run()
    for _ in range(3):
        h.clock.advance(4.0)
        h.feed("a", speech(9))
        h.run()
    h.feed("a", speech(), is_last=True)
    h.run()
    assert h.texts("b") == ["1"]


def test_an_aborted_stream_is_over_and_its_chunks_are_cancelled():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1))
    h.engine.abort("a")
    h.run()
    assert isinstance(h.results["a"][0].error, CancelledError)
    assert h.engine.num_open == 0
    assert h.model.batches == []


def test_a_cancelled_chunk_that_has_waited_ends_its_stream_before_it_runs():
    h = Harness()
    h.begin("a")
    h.begin("b")
    h.feed("a", speech(1), is_cancelled=lambda: True)
    h.feed("b", speech(2), is_last=True)
    h.clock.advance(1.0)
    h.run()
    assert h.errors("a") == ["the stream was cancelled"]
    assert h.texts("b") == ["2"]
    assert h.model.batches == [(1, 1)]


def test_a_failing_batch_runs_stream_by_stream_and_only_the_guilty_one_is_over():
    h = Harness()
    h.begin("a")
    h.begin("b")
    h.feed("a", np.full(CHUNK, POISON, np.float32))
    h.feed("b", speech(2))
    h.run()
    assert h.errors("a") == ["stream a: transcribing failed: RuntimeError('poisoned')"]
    assert isinstance(h.results["a"][0].error, ServerError)
    with pytest.raises(KeyError):
        h.feed("a", speech(1))
    h.feed("b", speech(3), is_last=True)
    h.run()
    assert h.texts("b") == ["2", "2 3"]


def test_audio_that_cannot_be_prepared_ends_its_stream_alone():
    h = Harness()
    h.begin("a")
    h.begin("b")
    h.feed("a", np.full(CHUNK, UNPREPARABLE, np.float32))
    h.feed("a", speech(1))
    h.feed("b", speech(2), is_last=True)
    h.run()
    assert h.errors("a") == ["stream a: preparing failed: RuntimeError('no features')"] * 2
    assert h.texts("b") == ["2"]


def test_samples_that_are_none_are_refused_and_the_stream_goes_on():
    h = Harness()
    h.begin("a")
    with pytest.raises(ClientError, match="samples must be finite"):
        h.feed("a", np.array([0.0, np.nan], np.float32))
    h.feed("a", speech(1), is_last=True)
    h.run()
    assert h.texts("a") == ["1"]


def test_options_that_the_model_cannot_do_start_nothing():
    h = Harness()
    with pytest.raises(ClientError, match="language is 'xx'"):
        h.begin("a", options=TranscribeOptions("xx"))
    with pytest.raises(ClientError, match="sample_rate is 5 Hz"):
        h.begin("a", sample_rate_hz=5)
    with pytest.raises(KeyError):
        h.feed("a", speech(1))


def test_where_the_cache_is_full_a_stream_goes_back_to_wait_and_loses_nothing():
    h = Harness(num_blocks=2)
    for number, name in enumerate("abc"):
        h.begin(name)
        h.clock.advance(0.01)
        h.feed(name, speech(number, 10 + number))
    h.run()
    assert [len(h.results[name]) for name in "abc"] == [1, 1, 0], "the newest was sent back"
    assert h.metrics.totals["oasr_preemptions_total",] == 1
    h.feed("a", speech(5), is_last=True)
    h.run()
    h.feed("c", speech(6), is_last=True)
    h.feed("b", speech(7), is_last=True)
    h.run()
    assert h.texts("a") == ["0 10", "0 10 5"]
    assert h.texts("b") == ["1 11", "1 11 7"]
    assert h.texts("c") == ["2 12", "2 12 6"]
    assert h.model.num_blocks_used == 0


def test_a_stream_at_its_capacity_ends_with_its_text():
    h = Harness(max_chunks=2)
    h.begin("a")
    h.feed("a", speech(1))
    h.feed("a", speech(2, 3))
    h.feed("a", speech(4))
    h.run()
    assert h.texts("a")[:2] == ["1", "1 2"]
    assert h.results["a"][1].is_final
    assert h.engine.num_open == 0


def test_every_chunk_is_answered_when_the_engine_closes_and_no_other_is_accepted():
    h = Harness()
    h.begin("a")
    h.feed("a", speech(1, 2))
    h.engine.start()
    h.engine.close()
    assert h.texts("a") == ["1 2"]
    for attempt in (lambda: h.begin("b"), lambda: h.feed("a", speech(3))):
        with pytest.raises(UnavailableError, match="shutting down"):
            attempt()


@pytest.mark.parametrize(
    ("num_ready", "batches"),
    [
        (1, [(1, 1)]),
        (3, [(3, 4)]),
        (4, [(4, 4)]),
        (21, [(16, 16), (5, 8)]),
        (17, [(16, 16), (1, 1)]),
    ],
)
def test_what_is_due_is_cut_to_rungs_and_the_last_part_padded(num_ready, batches):
    ladder = Ladder((1, 4, 8, 16), 16)
    parts = cut(list(range(num_ready)), ladder, lambda rows: 0.01 + 0.001 * rows, 16)
    assert [(len(part.streams), part.num_rows) for part in parts] == batches


def test_rows_that_cost_as_much_as_forwards_are_not_padded():
    parts = cut(list(range(5)), Ladder((1, 4, 8), 8), lambda rows: 0.001 * rows, 8)
    assert [(len(part.streams), part.num_rows) for part in parts] == [(4, 4), (1, 1)]


def test_no_batch_is_larger_than_asked():
    parts = cut(list(range(11)), Ladder((1, 4, 8), 8), lambda rows: 0.01 + 0.001 * rows, 4)
    assert [(len(part.streams), part.num_rows) for part in parts] == [(4, 4), (4, 4), (3, 4)]


@pytest.mark.parametrize(
    ("num_ready", "num_workers", "rows"),
    [(32, 1, 8), (32, 2, 8), (8, 2, 4), (5, 2, 4), (3, 2, 2), (2, 2, 1), (1, 2, 1), (1, 1, 1)],
)
def test_batches_are_as_large_as_makes_a_row_cheap_and_small_enough_for_all_workers(
    num_ready, num_workers, rows
):
    ladder = Ladder((1, 2, 4, 8, 16, 32), 32)
    times_s = {1: 16.0, 2: 28.0, 4: 50.0, 8: 85.0, 16: 164.0, 32: 344.0}
    assert best_rows(num_ready, num_workers, ladder, times_s.__getitem__) == rows


def test_batches_that_run_side_by_side_answer_every_stream_once():
    h = Harness(parallel_batches=3)
    for number in range(6):
        h.begin(f"s{number}")
        h.feed(f"s{number}", speech(number, 10 + number), is_last=True)
    h.run()
    for number in range(6):
        assert h.texts(f"s{number}") == [f"{number} {10 + number}"]
    assert sum(streams for streams, _ in h.model.batches) == 12
    h.engine.close()


def test_streams_that_push_each_other_out_of_a_small_cache_all_get_their_text():
    h = Harness(num_blocks=1)
    for number, name in enumerate("abc"):
        h.begin(name)
        h.clock.advance(0.01)
        h.feed(name, speech(number, 10 + number), is_last=True)
    h.run()
    assert [h.texts(name) for name in "abc"] == [["0 10"], ["1 11"], ["2 12"]]
    assert h.model.num_blocks_used == h.engine.num_open == 0


def test_who_waits_for_admission_and_has_gone_leaves_its_place():
    h = Harness(max_streams=1)
    gone = []
    h.begin("a")
    h.feed("a", speech(1))
    h.begin("b")
    h.feed("b", speech(2), is_cancelled=lambda: bool(gone))
    h.run()
    gone.append(True)
    h.clock.advance(1.0)
    assert h.engine._seconds_to_wakeup() == 0.0
    h.run()
    assert h.errors("b") == ["the stream was cancelled"]
    assert h.engine.num_open == 1


def test_closing_ends_the_streams_that_others_wait_for():
    h = Harness(max_streams=1)
    for name in "abc":
        h.begin(name)
        h.feed(name, speech(5))
    h.engine.start()
    h.engine.close()
    assert [h.texts(name) for name in "abc"] == [["5"]] * 3
    assert h.engine.num_open == h.model.num_blocks_used == 0


def test_a_stream_whose_text_cannot_be_made_is_over_alone():
    h = Harness()
    for name in "ab":
        h.begin(name)
        h.feed(name, speech(1))

    def broken(words):
        raise RuntimeError("no text")

    h.engine._live["a"].stream.partial = broken
    h.run()
    assert h.errors("a") == ["stream a: making the text failed: RuntimeError('no text')"]
    assert h.texts("b") == ["1"]
    assert h.engine.num_open == 1


def test_a_batch_that_had_run_in_part_runs_none_twice():
    h = Harness()
    for name in "ab":
        h.begin(name)
        h.feed(name, speech(1, 2))
    take = h.model.take

    def half(streams, inputs, outputs):
        if len(streams) == 2:
            take(streams[:1], inputs, outputs[:1])
            raise RuntimeError("the second failed")
        take(streams, inputs, outputs)

    h.model.take = half
    h.run()
    assert h.texts("a") == h.texts("b") == ["1 2"]


def test_an_engine_that_stops_on_a_fault_answers_everybody():
    h = Harness()
    for name in "ab":
        h.begin(name)
        h.feed(name, speech(1))
    h.engine._scheduler.schedule = None
    h.engine.start()
    h.engine._thread.join(timeout=10)
    assert not h.engine._thread.is_alive()
    for name in "ab":
        [error] = h.errors(name)
        assert error.startswith(f"stream {name}: the engine stopped: TypeError")
    with pytest.raises(UnavailableError, match="the engine has stopped"):
        h.begin("c")
