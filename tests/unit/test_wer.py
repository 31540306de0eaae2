"""What counts as a word error, with rates that were worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasr_backend.wer import fold, word_error_rate, word_errors

WORD_LISTS = st.lists(st.sampled_from(["go", "forward", "ten", "meters"]), max_size=6)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", ""),
        (" ... ", ""),
        ("He was  not,\nan ill-disposed young man.", "he was not an ill disposed young man"),
        ("Mr. John Dashwood", "mister john dashwood"),
        ("Mrs Dr", "missus doctor"),
        ("'Don\u2019t', he said", "don't he said"),
        ("rather\u2014selfish", "rather selfish"),
        ("Go forward 10 meters!", "go forward ten meters"),
        ("0 7 13 20 42 99", "zero seven thirteen twenty forty two ninety nine"),
        ("29340", "two nine three four zero"),
        ("33-4-692", "thirty three four six nine two"),
        ("007 07", "zero zero seven zero seven"),
        ("3.5 at 10:30", "three five at ten thirty"),
        ("B2B 1st", "b2b 1st"),
        ("STRASSE Stra\u00dfe", "strasse strasse"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u094d\u0926\u0940"),
    ],
)
def test_fold_drops_what_no_listener_would_call_a_mistake(text: str, folded: str) -> None:
    assert fold(text) == folded


@given(st.text())
def test_folding_folded_text_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors"),
    [
        ("", "", 0),
        ("ten of clubs", "ten of clubs", 0),
        ("ten of clubs", "ten of clothes", 1),  # substitution
        ("ten of clubs", "ten clubs", 1),  # deletion
        ("ten clubs", "ten of clubs", 1),  # insertion
        ("ten of clubs", "", 3),
        ("", "ten of clubs", 3),
        ("a b c d", "b c d e", 2),  # one deleted in front, one inserted behind
        ("a b c d e", "a x c e f", 3),  # x for b, d deleted, f inserted
        ("a b", "b a", 2),  # swapped words have no rate of their own
    ],
)
def test_word_errors_are_the_fewest_edits(reference: str, hypothesis: str, errors: int) -> None:
    assert word_errors(reference.split(), hypothesis.split()) == errors


@given(WORD_LISTS, WORD_LISTS, WORD_LISTS)
def test_word_errors_are_a_distance(a: list[str], b: list[str], c: list[str]) -> None:
    assert word_errors(a, b) == word_errors(b, a)
    assert (word_errors(a, b) == 0) == (a == b)
    assert word_errors(a, c) <= word_errors(a, b) + word_errors(b, c)


def test_rate_is_pooled_over_all_texts() -> None:
    references = ["he was not an ill disposed young man", "five five"]
    hypotheses = ["He was not an old-sposed young man.", "5 5 5"]
    assert word_error_rate(references, hypotheses) == 3 / 10  # 2 of 8 words, and 1 of 2


def test_rate_is_above_one_when_more_words_are_invented_than_spoken() -> None:
    assert word_error_rate(["ten"], ["of clubs ten of clubs"]) == 4.0


def test_a_text_without_reference_words_counts_what_was_heard_in_it() -> None:
    assert word_error_rate(["go forward", ""], ["go forward", "you"]) == 0.5


@pytest.mark.parametrize("references", [[], ["", "..."]])
def test_no_reference_words_is_refused(references: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^the references hold no words, so there is no rate"):
        word_error_rate(references, references)


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        word_error_rate(["a", "b"], ["a"])
