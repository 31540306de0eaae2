"""Tokens as text and as timed words. It knows nothing of how they were decoded."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from math import exp

from oasr_backend.decode.ctc import Token
from oasr_backend.models.base import Word

SPACES = frozenset({"<space>", "▁"})
"""How unit tables write a space; WeNet and SentencePiece also begin a word's first piece with the second."""

SILENT = frozenset({"<blank>", "<blk>", "<s>", "</s>", "<sos>", "<eos>", "<sos/eos>"})
"""Units that are no text."""


class Vocabulary:
    """The units of a model by their number; `separator` stands between two units of a text."""

    def __init__(self, units: Sequence[str], separator: str = "") -> None:
        self._texts = [_text_of(unit) for unit in units]
        self._texts = [separator + text if text else text for text in self._texts]

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, its spaces single and none at either end."""
        return " ".join("".join(self._texts[token_id] for token_id in token_ids).split())

    def words(self, tokens: Sequence[Token], frame_s: float) -> tuple[Word, ...]:
        """Return the words of tokens, whose frames last `frame_s` seconds.

        Of a script that writes no spaces each character is one. A word's confidence is the geometric mean of its
        tokens' probabilities.
        """
        groups: list[list[tuple[str, Token]]] = [[]]
        for token in tokens:
            for piece in _pieces(self._texts[token.id]):
                if piece == " " or (groups[-1] and _is_unspaced(piece)):
                    groups.append([])
                if piece != " ":
                    groups[-1].append((piece, token))
                    if _is_unspaced(piece):
                        groups.append([])
        return tuple(_word(group, frame_s) for group in groups if group)


def _text_of(unit: str) -> str:
    if unit in SILENT:
        return ""
    return " " if unit in SPACES else unit.replace("▁", " ")


def _pieces(text: str) -> list[str]:
    """Cut a unit's text into spaces and what is between them."""
    pieces = []
    for index, part in enumerate(text.split(" ")):
        pieces += [" "] * (index > 0) + [part] * bool(part)
    return pieces


def _is_unspaced(piece: str) -> bool:
    """Tell whether a piece is of a script that writes no spaces: one ideograph or kana, each then a word."""
    return len(piece) == 1 and any(
        unicodedata.name(piece, "").startswith(script)
        for script in ("CJK UNIFIED", "HIRAGANA", "KATAKANA")
    )


def _word(group: Sequence[tuple[str, Token]], frame_s: float) -> Word:
    tokens = [token for _, token in group]
    confidence = exp(sum(token.log_prob for token in tokens) / len(tokens))
    text = "".join(piece for piece, _ in group)
    return Word(text, tokens[0].start * frame_s, tokens[-1].end * frame_s, confidence)
