"""Whisper's tokens as text and words, against the tokenizer that the model was trained with."""

from __future__ import annotations

import random

import pytest
import tokenizers

from oasr_backend.errors import ConfigError
from oasr_backend.models.whisper_folder import find_model
from oasr_backend.models.whisper_vocabulary import Vocabulary

SENTENCES = [
    ' Hello, Mr. Dashwood -- "ill-disposed" he said; it\'s 3.5% ($4)!',
    " naïve Ünïcode 😀 ok",
    " ¿Qué pasa? don’t “quote me” l'amour",
    " Привет, мир! 東京 2024.",
]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.load(find_model(""))


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.Tokenizer.from_file(str(find_model("") / "tokenizer.json"))


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def texts(words):
    return [word.text for word in words]


def test_every_token_spells_what_the_tokenizer_says(vocabulary, tokenizer):
    assert all(
        vocabulary.text([token]) == tokenizer.decode([token]) for token in range(vocabulary.end)
    )


def test_any_tokens_spell_a_text_whose_characters_add_up(vocabulary):
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(vocabulary.end) for _ in range(8)]
        words = vocabulary.words(tokens, "ja")
        assert sum(word.num_tokens for word in words) == len(tokens)
        assert "".join("".join(texts(words)).split()) == "".join(vocabulary.text(tokens).split())


@pytest.mark.parametrize("sentence", SENTENCES)
def test_words_joined_with_spaces_are_the_text(vocabulary, tokenizer, sentence):
    tokens = encode(tokenizer, sentence)
    words = vocabulary.words(tokens, "en")
    assert vocabulary.text(tokens) == sentence
    assert " ".join(texts(words)) == sentence.strip()
    assert sum(word.num_tokens for word in words) == len(tokens)


@pytest.mark.parametrize(
    ("sentence", "language", "words"),
    [
        (" Well, it's 3.5% now!", "en", ["Well,", "it's", "3.5%", "now!"]),
        (' He said: "Come in."', "en", ["He", "said:", '"Come', 'in."']),
        (" ¿Qué (casi) pasa?", "es", ["¿Qué", "(casi)", "pasa?"]),
        (" cold-hearted, and...", "en", ["cold-hearted,", "and..."]),
        ("東京タワー、すごい。", "ja", ["東", "京", "タ", "ワ", "ー、", "す", "ご", "い。"]),
        ("我用 Dashwood 手机", "zh", ["我", "用", "Dashwood", "手", "机"]),
        ("", "en", []),
        (" .", "en", ["."]),
    ],
)
def test_punctuation_belongs_to_its_word(vocabulary, tokenizer, sentence, language, words):
    assert texts(vocabulary.words(encode(tokenizer, sentence), language)) == words


def test_special_tokens_spell_nothing(vocabulary):
    assert vocabulary.without_specials(
        [vocabulary.start, 5, vocabulary.end, vocabulary.no_timestamps]
    ) == [5]


def test_the_languages_are_those_of_whisper(vocabulary):
    assert len(vocabulary.languages) == 99
    assert {"en", "de", "zh", "haw"} <= set(vocabulary.languages)


def test_a_vocabulary_of_another_model_is_refused():
    with pytest.raises(ConfigError) as caught:
        Vocabulary(["<s>", "</s>", "a"], "some/vocabulary.json")
    assert str(caught.value) == (
        "model_dir: some/vocabulary.json has no token <|endoftext|>, so it is not that of a Whisper model: "
        "set model_dir to a folder made by ct2-transformers-converter from a Whisper model"
    )
