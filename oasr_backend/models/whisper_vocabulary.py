"""Whisper's tokens as text: which are special, what the others spell, and which of them make up a word.

It reads the vocabulary file of a converted model and knows nothing of the model itself. A token spells bytes, not
letters: a letter of most scripts is spread over several tokens, so nothing is decoded before its last byte is there.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.models.base import UNSPACED_LANGUAGES

OPENING = frozenset("\"'“‘¿¡([{«„「『《（-")
LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class WordTokens:
    """A word with its punctuation, and how many tokens spell it."""

    text: str
    num_tokens: int


class Vocabulary:
    """The tokens of one model, by id."""

    def __init__(self, tokens: Sequence[str], source: str = "vocabulary") -> None:
        """Take all tokens in the order of their ids, written in GPT-2's printable alphabet.

        Raises ConfigError where they are not Whisper's.
        """
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._source = source
        self.end = self.special("<|endoftext|>")
        self.start = self.special("<|startoftranscript|>")
        self.no_timestamps = self.special("<|notimestamps|>")
        self._spelling = [_spelled_bytes(token) for token in tokens[: self.end]]
        matches = (LANGUAGE_TOKEN.fullmatch(token) for token in tokens[self.end :])
        self.languages = tuple(sorted(match.group(1) for match in matches if match))

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Read vocabulary.json or vocabulary.txt of a converted model."""
        path = folder / "vocabulary.json"
        if path.is_file():
            return cls(json.loads(path.read_text("utf-8")), str(path))
        path = folder / "vocabulary.txt"
        return cls(path.read_text("utf-8").removesuffix("\n").split("\n"), str(path))

    def special(self, token: str) -> int:
        """Return the id of a special token, such as "<|en|>"."""
        if token not in self._ids:
            raise ConfigError(
                f"model_dir: {self._source} has no token {token}, so it is not that of a Whisper model: "
                "set model_dir to a folder made by ct2-transformers-converter from a Whisper model"
            )
        return self._ids[token]

    def without_specials(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that spell text."""
        return [token for token in tokens if token < self.end]

    def text(self, tokens: Sequence[int]) -> str:
        """Return what the tokens spell; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self._spelling[token] for token in tokens).decode("utf-8", "replace")

    def words(self, tokens: Sequence[int], language: str | None) -> list[WordTokens]:
        """Group text tokens into words; the counts add up to len(tokens).

        In a spaced language the words joined with spaces are the text. Punctuation belongs to the word before it,
        an opening quote, bracket or dash to the word after it.
        """
        groups: list[WordTokens] = []
        for unit in self._characters(tokens):
            if groups and not _starts_word(
                groups[-1].text, unit.text, language in UNSPACED_LANGUAGES
            ):
                last = groups[-1]
                groups[-1] = WordTokens(last.text + unit.text, last.num_tokens + unit.num_tokens)
            else:
                groups.append(unit)
        return [WordTokens(group.text.strip(), group.num_tokens) for group in groups]

    def _characters(self, tokens: Sequence[int]) -> list[WordTokens]:
        """Group tokens into the smallest runs that spell whole characters."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        units: list[WordTokens] = []
        num_tokens, text = 0, ""
        for index, token in enumerate(tokens):
            text += decoder.decode(self._spelling[token], final=index == len(tokens) - 1)
            num_tokens += 1
            if decoder.getstate()[0] == b"" and text:
                units.append(WordTokens(text, num_tokens))
                num_tokens, text = 0, ""
        if num_tokens:
            units.append(WordTokens(text, num_tokens))
        return units


def _starts_word(before: str, text: str, unspaced: bool) -> bool:
    if not before.strip() or all(letter in OPENING for letter in before.strip()):
        return False
    if not any(letter.isalnum() for letter in text):
        return text.startswith(" ") and text.strip() != "" and text.strip()[0] in OPENING
    latin = before[-1].isascii() and text[0].isascii()  # an English word amid Chinese stays whole
    return text.startswith(" ") or (unspaced and not latin)


def _printable_alphabet() -> dict[str, int]:
    """Return the byte that each of GPT-2's 256 printable characters stands for (openai/gpt-2 `encoder.py`).

    Bytes that print as Latin-1 stand for themselves, the others for U+0100 onwards in their order.
    """
    own = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = sorted(set(range(256)) - set(own))
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _printable_alphabet()


def _spelled_bytes(token: str) -> bytes:
    if all(letter in _ALPHABET for letter in token):
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode("utf-8")
