"""Word error rate of transcripts, after folding what no listener would call a mistake.

It knows nothing of audio or models; the number rules are English, all else holds in any language
that puts spaces between its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_TITLES = {"mr": "mister", "mrs": "missus", "dr": "doctor"}
# fmt: off
_BELOW_TWENTY = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on


def fold(text: str) -> str:
    """Return `text` as lower-case words with single spaces, ready to compare word by word.

    - Punctuation, hyphens and symbols become spaces: "cold-hearted" is two words. An apostrophe
      inside a word stays ("don't"), a curly one becomes straight.
    - "Mr", "Mrs" and "Dr" are spelled out.
    - 0 to 99 are spelled as numbers (10: "ten", 42: "forty two"); more digits, or digits after a
      leading zero, one by one (345: "three four five"), as in codes and phone numbers. "One
      hundred" for 100, ordinals such as "1st" and digits inside words are not handled.

    Folding folded text changes nothing.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    straight = folded.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    spaced = "".join(" " if _separates(character) else character for character in straight)
    words = (word.strip("'") for word in spaced.split())
    return " ".join(_spell(word) for word in words if word)


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Count the fewest words to replace, drop or insert that turn one list into the other.

    Levenshtein's distance, a row of the table at a time.
    """
    row = list(range(len(hypothesis) + 1))
    for num_deleted, expected in enumerate(reference, start=1):
        diagonal, row[0] = row[0], num_deleted
        for column, heard in enumerate(hypothesis, start=1):
            substituted = diagonal + (expected != heard)
            diagonal = row[column]
            row[column] = min(substituted, row[column] + 1, row[column - 1] + 1)
    return row[-1]


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the errors of all texts together as a share of all reference words.

    Both sides are folded here. The rate is pooled, so a long text counts for more than a short
    one, and inserted words can bring it above 1.

    Raises:
        ValueError: the lists differ in length, or hold no reference word to divide by.
    """
    pairs = [
        (fold(reference).split(), fold(hypothesis).split())
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    num_words = sum(len(reference) for reference, _ in pairs)
    if num_words == 0:
        raise ValueError("the references hold no words, so there is no rate: pass at least one")
    return sum(word_errors(*pair) for pair in pairs) / num_words


def _separates(character: str) -> bool:
    # By category and not by \w, which would cut Indic words at their vowel signs.
    return character != "'" and unicodedata.category(character)[0] in "PSZC"


def _spell(word: str) -> str:
    if word in _TITLES:
        return _TITLES[word]
    if not re.fullmatch("[0-9]+", word):
        return word
    if len(word) > 2 or (len(word) == 2 and word[0] == "0"):
        return " ".join(_BELOW_TWENTY[int(digit)] for digit in word)
    number = int(word)
    if number < 20:
        return _BELOW_TWENTY[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f" {_BELOW_TWENTY[ones]}" if ones else "")
