"""The bundle that asr_streaming serves by default hears people."""

from pathlib import Path

import numpy as np
import pytest
import torch

from oasr_backend.bundle import read_bundle
from oasr_backend.export.wenet import load_checkpoint
from oasr_backend.runtime.onnx import OnnxRuntime
from oasr_backend.training.evaluation import (
    CHUNKINGS,
    Chunking,
    Clips,
    Recognizer,
    human_clips,
    report,
)
from oasr_backend.training.examples import UNITS
from oasr_backend.wer import word_error_rate

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "oasr_backend/demo_model"


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(BUNDLE)


@pytest.fixture(scope="module")
def people():
    return human_clips(ROOT / "tests/data")


def test_the_bundle_spells_the_tokens_that_it_was_trained_on():
    assert read_bundle(BUNDLE).tokens == UNITS


def test_the_human_clips_are_the_seven_of_the_domain(people):
    assert len(people.waveforms) == 7
    assert sum(len(text.split()) for text in people.texts) == 30


@pytest.mark.parametrize("chunking", CHUNKINGS, ids=str)
def test_hardly_a_word_of_what_people_say_is_misheard(recognizer, people, chunking):
    heard = [recognizer.transcribe(waveform, chunking) for waveform in people.waveforms]
    # None of 30 is (docs/demo-model.md): with another CPU's rounding a letter may be.
    assert word_error_rate(people.texts, heard) <= 0.1, list(zip(people.texts, heard, strict=True))


def test_the_bundle_is_that_of_the_committed_checkpoint(people):
    checkpoint = load_checkpoint(ROOT / "tests/data/demo_checkpoint")
    runtime = OnnxRuntime(BUNDLE, num_threads=1)
    features = runtime.features(people.waveforms[0][np.newaxis])
    lengths = np.array([features.shape[1]])
    ours, _ = runtime.encode(people.waveforms[:1], 16, 4)
    with torch.no_grad():
        theirs, _ = checkpoint.model(torch.from_numpy(features), torch.from_numpy(lengths), 16, 4)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-3)


def test_a_report_names_test_words_chunks_and_rate(recognizer, people):
    lines = list(report(recognizer, [Clips("people", people.waveforms[:1], people.texts[:1])]))
    assert [line.rsplit(":", 1)[0] for line in lines] == [
        "people (3 words), chunks of 16, all to the left",
        "people (3 words), chunks of 16, 4 to the left",
        "people (3 words), full context",
    ]
    assert all(line.endswith(" %") for line in lines)


def test_hearing_a_clip_again_changes_nothing(recognizer, people):
    first, second = people.waveforms[:2]
    before = recognizer.transcribe(first, Chunking(16, -1))
    recognizer.transcribe(second, Chunking(16, -1))
    assert recognizer.transcribe(first, Chunking(16, -1)) == before
