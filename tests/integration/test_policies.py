"""A policy decides when a clip is transcribed, never what its text is."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from oasr_backend.config import EngineConfig
from oasr_backend.engine.job import Utterance
from oasr_backend.engine.offline import OfflineEngine
from oasr_backend.models.whisper import WhisperConfig, WhisperRecognizer
from tests.fakes import InlineExecutor

DATA = Path(__file__).parents[1] / "data"
POLICIES = ["fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive"]


@pytest.fixture(scope="module")
def recognizer():
    return WhisperRecognizer()


def texts_under(policy, recognizer):
    """Return the text of every clip at hand, all sent at once."""
    config = EngineConfig(
        max_batch_size=4,
        preferred_batch_size=(1, 2, 4),
        schedule_policy=policy,
        fixed_window_frames=recognizer.fixed_window_frames,
    )
    engine = OfflineEngine(config, recognizer)
    texts, all_in = {}, threading.Event()

    def take(result):
        texts[result.request_id] = result.transcript.text
        if len(texts) == len(clips):
            all_in.set()

    clips = sorted(DATA.glob("*/*.wav"))
    for clip in clips:
        samples, _ = soundfile.read(clip, dtype="float32")
        engine.add_request(Utterance(clip.name, samples), take)
    engine.start()
    assert all_in.wait(120)
    engine.close()
    return texts


@pytest.fixture(scope="module")
def texts_of_fcfs(recognizer):
    return texts_under("fcfs", recognizer)


def size_of(recognizer, samples, **options):
    """Return the size that an utterance waits with in the scheduler."""
    config = EngineConfig(fixed_window_frames=recognizer.fixed_window_frames, **options)
    engine = OfflineEngine(config, recognizer, preparer=InlineExecutor())
    engine.add_request(Utterance("a", samples), lambda result: None)
    while engine._scheduler.num_waiting == 0:
        engine.take_commands(10.0)
    return engine._scheduler.find_request("a/0").size


def test_silence_around_a_clip_counts_unless_jobs_are_ordered_by_their_speech():
    # In the short window a row counts as its window, not as its length.
    recognizer = WhisperRecognizer(WhisperConfig(short_window=False))
    clip, _ = soundfile.read(next(DATA.glob("librivox/*.wav")), dtype="float32")
    silence = np.zeros(5 * 16_000, np.float32)
    padded = np.concatenate([silence, clip, silence])
    assert size_of(recognizer, padded) == size_of(recognizer, clip) + 1000
    speech_frames = size_of(recognizer, clip, job_size="vad")
    assert size_of(recognizer, padded, job_size="vad") == pytest.approx(speech_frames, abs=20)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_every_policy_gives_the_texts_of_fcfs(recognizer, texts_of_fcfs, policy):
    assert texts_under(policy, recognizer) == texts_of_fcfs
