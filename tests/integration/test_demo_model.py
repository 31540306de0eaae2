"""The bundle that asr_streaming serves by default hears people."""

from pathlib import Path

import pytest

from oasr_backend.bundle import read_bundle
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
def test_about_a_fifth_of_what_people_say_is_misheard(recognizer, people, chunking):
    heard = [recognizer.transcribe(waveform, chunking) for waveform in people.waveforms]
    # Six of 30 are (docs/demo-model.md): with another CPU's rounding a letter more may be.
    assert word_error_rate(people.texts, heard) <= 0.25, list(zip(people.texts, heard, strict=True))


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
