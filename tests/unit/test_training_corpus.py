"""What the demo model is taught: sentences of its domain, planned from a seed, test voices kept apart."""

import re
from random import Random

import numpy as np
import pytest

from oasr_backend.training import batches, corpus, texts, voices
from oasr_backend.training.corpus import held_out_plan, training_plan
from oasr_backend.training.voices import Delivery, Voice


@pytest.mark.parametrize("kind", [kind for kind, _ in texts.KINDS], ids=lambda kind: kind.__name__)
def test_a_sentence_is_lower_case_words_of_the_domain(kind):
    random = Random(0)
    for _ in range(300):
        sentence = kind(random)
        assert re.fullmatch("[a-z]+( [a-z]+)*", sentence)
        assert set(sentence.split()) <= set(texts.WORDS)


def test_shares_of_the_kinds_add_up_to_one():
    assert sum(share for _, share in texts.KINDS) == pytest.approx(1.0)


def test_the_domain_reaches_what_the_human_clips_say():
    said = "ten of clubs four queen seven five eight spades hearts go forward meters two nine three zero"
    assert set(said.split()) <= set(texts.WORDS)


def test_a_single_unit_is_singular():
    random = Random(0)
    sentences = [texts.motion(random) for _ in range(3000)]
    counted = [
        s for s in sentences if re.search(r"\bone (meter|step|degree|second|minute|mile|inch)", s)
    ]
    assert any(re.search(r"(?<!ty) one meter\b", s) for s in counted)
    assert not any(
        re.search(r"\b(right|left|up|down|back|forward) one \w+s$", s) for s in sentences
    )


def test_the_same_seed_plans_the_same_lines():
    assert training_plan(50, seed=3) == training_plan(50, seed=3)
    assert training_plan(50, seed=3) != training_plan(50, seed=4)
    assert training_plan(50, seed=3) == training_plan(80, seed=3)[:50]


def test_no_voice_is_both_trained_on_and_held_out():
    trained = {line.voice for line in training_plan(20_000, seed=1)}
    held_out = {line.voice for line in held_out_plan(2_000, seed=1)}
    assert not trained & held_out
    assert {voice.engine for voice in held_out} == {"espeak", "flite"}


def test_a_test_variant_or_accent_is_trained_on_in_no_combination():
    names = [
        line.voice.name for line in training_plan(20_000, seed=1) if line.voice.engine == "espeak"
    ]
    accents, variants = zip(*(name.split("+") for name in names), strict=True)
    assert voices.TEST_ACCENT not in accents
    assert not set(voices.TEST_VARIANTS) & set(variants)


def test_a_corpus_is_spoken_once_and_again_when_its_plan_changes(tmp_path, monkeypatch):
    spoken = []

    def speak_all(folder, plan, num_processes):
        spoken.append(len(plan))
        np.save(folder / "samples.npy", np.arange(5, dtype=np.int16))
        np.save(folder / "starts.npy", np.array([0, 2, 5]))
        (folder / "lines.json").write_text(
            '[{"text": "go", "voice": "v"}, {"text": "no", "voice": "w"}]'
        )

    monkeypatch.setattr(corpus, "_speak_all", speak_all)
    for num_lines in (2, 2, 3):
        made = corpus.prepare(tmp_path / "speech", training_plan(num_lines, seed=1), 1)
    assert spoken == [2, 3]
    assert len(made) == 2
    assert made.texts == ["go", "no"]
    assert (made.waveform(1) == np.array([2, 3, 4], np.float32) / 32768).all()
    assert made.durations_s().tolist() == [2 / 16000, 3 / 16000]


def test_a_missing_synthesizer_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError) as caught:
        corpus.synthesize("go", Voice("flite", "rms"), Delivery(), seed=0)
    assert str(caught.value) == "flite is not installed. Run: sudo apt-get install flite"


DURATIONS_S = np.random.default_rng(0).uniform(0.5, 11.0, size=1500).tolist()


def test_an_epoch_hears_every_utterance_once():
    plan = batches.plan_epoch(range(1500), DURATIONS_S, 60.0, (1, 0))
    heard = sorted(index for batch in plan for item in batch for index in item)
    assert heard == list(range(1500))


def test_a_batch_lasts_no_longer_with_its_padding_than_allowed():
    for batch in batches.plan_epoch(range(1500), DURATIONS_S, 60.0, (1, 0)):
        longest_s = max(sum(DURATIONS_S[index] for index in item) for item in batch)
        assert len(batch) * longest_s <= 60.0


def test_an_item_longer_than_a_batch_runs_alone():
    assert sorted(batches.plan_epoch([0, 1], [70.0, 80.0], 60.0, (1, 0))) == [[(0,)], [(1,)]]


def test_joined_utterances_stay_within_their_length():
    items = [
        item
        for batch in batches.plan_epoch(range(1500), DURATIONS_S, 60.0, (1, 0))
        for item in batch
    ]
    joined = [item for item in items if len(item) > 1]
    assert joined
    assert all(
        sum(DURATIONS_S[index] for index in item) <= batches.MAX_JOINED_SECONDS for item in joined
    )


def test_the_same_seed_plans_the_same_epoch():
    first, again, other = (
        batches.plan_epoch(range(1500), DURATIONS_S, 60.0, (1, epoch)) for epoch in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_only_the_utterances_asked_for_are_heard():
    plan = batches.plan_epoch([3, 7, 9], DURATIONS_S, 60.0, (1, 0))
    assert sorted(index for batch in plan for item in batch for index in item) == [3, 7, 9]


def test_a_line_too_fast_to_be_spelled_is_left_out():
    limits_s = np.array([5 * 0.056, 6 * 0.056])  # "queen" needs a frame between its two e
    starts = np.array([0, *np.cumsum(np.ceil(np.repeat(limits_s, 2) * 16000 + [1, -2, 1, -2]))])
    made = corpus.Corpus(
        np.zeros(40_000, np.int16), starts, ["seven"] * 2 + ["queen"] * 2, ["v"] * 4
    )
    assert made.spellable() == [0, 2]
