"""CTC decoding against searches that look at every path."""

from __future__ import annotations

from itertools import groupby, product
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasr_backend.decode.ctc import GreedyDecoder, Token
from oasr_backend.decode.prefix_beam import PrefixBeamDecoder
from oasr_backend.decode.vocabulary import Vocabulary

BLANK = 0


def lattice(num_frames, num_tokens, seed, sharpness=1.0):
    logits = np.random.default_rng(seed).normal(size=(num_frames, num_tokens)) * sharpness
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def folded(path):
    return tuple(token for token, _ in groupby(path) if token != BLANK)


def every_text(log_probs):
    """Each text with the probability of all its paths."""
    texts = {}
    for path in product(range(log_probs.shape[1]), repeat=len(log_probs)):
        log_prob = sum(float(row[token]) for row, token in zip(log_probs, path, strict=True))
        texts[folded(path)] = texts.get(folded(path), 0.0) + exp(log_prob)
    return texts


def alignment(log_probs, text):
    """The (start, end) of each token on the best path of a text, by dynamic programming."""
    states = [BLANK, *(x for token in text for x in (token, BLANK))]
    best = {0: (float(log_probs[0][BLANK]), (0,)), 1: (float(log_probs[0][states[1]]), (1,))}
    for row in log_probs[1:]:
        following = {}
        for state, token in enumerate(states):
            skips = state > 1 and token not in (BLANK, states[state - 2])
            before = [best[s] for s in (state, state - 1, *([state - 2] * skips)) if s in best]
            if before:
                log_prob, path = max(before)
                following[state] = (log_prob + float(row[token]), (*path, state))
        best = following
    _, path = max(best[s] for s in (len(states) - 1, len(states) - 2) if s in best)
    return [
        (path.index(state), len(path) - path[::-1].index(state))
        for state in range(1, len(states), 2)
    ]


def decoded(decoder, log_probs, sizes=(1000,)):
    start = 0
    for size in sizes:
        decoder.advance(log_probs[start : start + size])
        start += size
    decoder.advance(log_probs[start:])
    return decoder.best()


def test_greedy_folds_repetitions_and_drops_blanks():
    log_probs = np.log(np.full((6, 3), 0.1, np.float32))
    for frame, token in enumerate((1, 1, 0, 1, 2, 2)):
        log_probs[frame, token] = log(0.8) + 0.01 * frame
    best = decoded(GreedyDecoder(), log_probs)
    spans = [(t.id, t.start, t.end) for t in best.tokens]
    assert spans == [(1, 0, 2), (1, 3, 4), (2, 4, 6)]
    assert best.tokens[0].log_prob == pytest.approx(log(0.8) + 0.01, abs=1e-6)
    assert best.num_stable == 3


@pytest.mark.parametrize("seed", range(12))
def test_prefix_beam_finds_the_likeliest_of_all_texts(seed):
    log_probs = lattice(5, 4, seed, sharpness=2.0)
    texts = every_text(log_probs)
    best = decoded(PrefixBeamDecoder(400), log_probs)
    assert texts[best.token_ids] == pytest.approx(max(texts.values()), rel=1e-5)


def test_prefix_beam_sums_paths_where_greedy_takes_the_best_one():
    # Two frames of blank 0.6 and a 0.4: the best path is empty (0.36), and "a" has three paths (0.64).
    log_probs = np.log(np.array([[0.6, 0.4], [0.6, 0.4]], np.float32))
    assert decoded(GreedyDecoder(), log_probs).token_ids == ()
    assert decoded(PrefixBeamDecoder(2), log_probs).token_ids == (1,)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [GreedyDecoder, lambda: PrefixBeamDecoder(8)])
def test_times_are_those_of_the_best_alignment_within_a_frame(make, seed):
    log_probs = lattice(40, 6, seed, sharpness=4.0)
    best = decoded(make(), log_probs)
    expected = alignment(log_probs, best.token_ids)
    for token, (start, end) in zip(best.tokens, expected, strict=True):
        assert abs(token.start - start) <= 1
        assert abs(token.end - end) <= 1


@pytest.mark.parametrize("make", [GreedyDecoder, lambda: PrefixBeamDecoder(4)])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(0, 9), max_size=12),
    num_frames=st.integers(0, 60),
)
def test_pieces_of_any_size_give_the_same(make, seed, sizes, num_frames):
    log_probs = lattice(num_frames, 5, seed, sharpness=3.0)
    assert decoded(make(), log_probs, sizes).tokens == decoded(make(), log_probs).tokens


@pytest.mark.parametrize("make", [GreedyDecoder, lambda: PrefixBeamDecoder(6)])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_stable_never_changes(make, seed):
    log_probs = lattice(300, 5, seed, sharpness=3.0)
    decoder = make()
    stable = ()
    for frame in range(0, 300, 4):
        decoder.advance(log_probs[frame : frame + 4])
        best = decoder.best()
        assert best.token_ids[: len(stable)] == stable
        stable = best.token_ids[: best.num_stable]
    assert len(stable) > 10


def test_a_long_stream_leaves_only_the_open_end_in_the_search():
    decoder = PrefixBeamDecoder(6)
    for seed in range(40):
        decoder.advance(lattice(100, 8, seed, sharpness=5.0))
    assert len(decoder.best().tokens) > 1000
    assert all(sum(1 for _ in beam.prefix.ancestors()) < 80 for beam in decoder._beams)


def vocabulary(*units):
    return Vocabulary(["<blank>", *units])


def test_letters_become_words_with_times():
    units = vocabulary("a", "b", "▁")
    tokens = [
        Token(1, 0, 1, 0.0),
        Token(2, 2, 3, log(0.25)),
        Token(3, 4, 5, 0.0),
        Token(1, 6, 9, 0.0),
    ]
    assert units.text([t.id for t in tokens]) == "ab a"
    first, second = units.words(tokens, 0.04)
    assert (first.text, first.start_s, first.end_s) == ("ab", 0.0, pytest.approx(0.12))
    assert first.confidence == pytest.approx(0.5)
    assert (second.text, second.start_s, second.end_s) == (
        "a",
        pytest.approx(0.24),
        pytest.approx(0.36),
    )


def test_word_pieces_become_words():
    units = vocabulary("▁go", "ing", "▁on", "<space>", "</s>")
    tokens = [Token(n, n, n + 1, 0.0) for n in (1, 2, 3, 4, 4, 1, 5)]
    assert units.text([t.id for t in tokens]) == "going on go"
    assert [w.text for w in units.words(tokens, 0.04)] == ["going", "on", "go"]


def test_a_script_without_spaces_gives_a_word_a_character():
    units = vocabulary("你", "好", "ok")
    tokens = [Token(n, n, n + 1, 0.0) for n in (1, 2, 3)]
    assert units.text([1, 2, 3]) == "你好ok"
    assert [w.text for w in units.words(tokens, 0.04)] == ["你", "好", "ok"]


def test_a_separator_stands_between_units():
    units = Vocabulary(["<blank>", "go", "on"], separator=" ")
    tokens = [Token(1, 0, 1, 0.0), Token(2, 1, 2, 0.0)]
    assert units.text([1, 2]) == "go on"
    assert [w.text for w in units.words(tokens, 0.04)] == ["go", "on"]


@pytest.mark.parametrize("make", [GreedyDecoder, lambda blank: PrefixBeamDecoder(8, blank)])
def test_any_token_may_be_the_blank(make):
    log_probs = lattice(40, 6, seed=3, sharpness=4.0)
    moved = np.roll(log_probs, -1, axis=1)  # the blank is the last one now
    expected = decoded(make(0), log_probs).token_ids
    assert tuple(token + 1 for token in decoded(make(5), moved).token_ids) == expected


def test_nothing_is_decoded_from_nothing():
    empty = np.zeros((0, 5), np.float32)
    for decoder in (GreedyDecoder(), PrefixBeamDecoder(3)):
        decoder.advance(empty)
        assert decoder.best().tokens == ()
