"""The engine of streams on a real model: its thread, thousands of streams, and what they leave behind."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.engine.stream import Chunk, StreamRequest
from oasr_backend.engine.streaming import StreamingEngine
from oasr_backend.models.ctc import CtcConfig
from oasr_backend.models.ctc_streams import CtcStreams
from tests.e2e.asr import clips

MAX_OPEN = 64


@pytest.fixture
def engine():
    config = EngineConfig(
        max_batch_size=16, max_streams=32, max_waiting=MAX_OPEN, measure_costs_s=0.0
    )
    engine = StreamingEngine(config, CtcStreams(CtcConfig(intra_threads=1), max_streams=32))
    engine.start()
    yield engine
    engine.close()


def resident_mb():
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6


def run_streams(engine, numbers, samples):
    """Run short streams, MAX_OPEN at a time; return their final texts by number."""
    room, texts = threading.Semaphore(MAX_OPEN), {}

    def finish(number, result):
        texts[number] = result.error or result.partial.transcript.text
        room.release()

    for number in numbers:
        room.acquire()
        engine.add_request(StreamRequest(str(number)))
        engine.feed_chunk(
            str(number),
            Chunk(samples[number % len(samples)], is_last=True),
            lambda result, number=number: finish(number, result),
        )
    for _ in range(MAX_OPEN):
        assert room.acquire(timeout=60)
    return texts


def test_ten_thousand_short_streams_leave_memory_and_blocks_where_they_were(engine):
    speech = next(iter(clips("commands").values()))
    samples = [speech[start : start + 2400] for start in range(0, 16000, 1600)]
    expected = run_streams(engine, range(len(samples)), samples)
    run_streams(engine, range(10, 2000), samples)
    gc.collect()
    before_mb = resident_mb()
    texts = run_streams(engine, range(2000, 12_000), samples)
    assert len(texts) == 10_000
    assert all(text == expected[number % len(samples)] for number, text in texts.items())
    gc.collect()
    assert engine.num_open == 0
    assert engine._model.num_blocks_used == 0
    assert resident_mb() - before_mb < 20
