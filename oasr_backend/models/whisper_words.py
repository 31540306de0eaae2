"""When each word was said, from where the decoder attended; and whether words repeat.

It knows nothing of the model that gave the attention.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oasr_backend.models.base import Word
from oasr_backend.models.whisper_vocabulary import WordTokens

ALIGNMENT_STEP_S = 0.02
"""The encoder halves the frames, so that the decoder attends in steps of 20 ms."""


def timed_words(
    groups: Sequence[WordTokens],
    path: Sequence[tuple[int, int]],
    probabilities: Sequence[float],
    duration_s: float,
) -> tuple[Word, ...]:
    """Return the words with their times.

    groups: the words and how many tokens each has.
    path: (token, step of 20 ms) pairs in order, from dynamic time warping over the attention; the token after the
        last one is the end of the text.
    probabilities: of each token; a word's confidence is their mean.
    duration_s: of the audio; nothing ends later.
    """
    ends = np.cumsum([group.num_tokens for group in groups], dtype=int).tolist()
    starts_s = _token_starts_s(path, ends[-1] if ends else 0, duration_s)
    words = []
    for group, end in zip(groups, ends, strict=True):
        start = end - group.num_tokens
        confidence = float(np.mean(probabilities[start:end]))
        words.append(Word(group.text, starts_s[start], starts_s[end], confidence))
    return _without_outer_silence(words)


def compression_ratio(text: str) -> float:
    """Return how many times zlib shrinks `text`: about 1 for a sentence, above 2.4 for a loop."""
    encoded = text.encode("utf-8")
    return len(encoded) / len(zlib.compress(encoded))


def ends_in_repetition(text: str) -> bool:
    """Return whether the last words, one or more, are the words right before them too."""
    words = re.findall(r"\w+", text.casefold())
    lengths = range(1, len(words) // 2 + 1)
    return any(words[-length:] == words[-2 * length : -length] for length in lengths)


def _token_starts_s(
    path: Sequence[tuple[int, int]], num_tokens: int, duration_s: float
) -> list[float]:
    """Return when each token starts, and when the end-of-text token after the last one does."""
    first_step: dict[int, int] = {}
    for token, step in path:
        first_step.setdefault(token, step)
    starts_s, latest = [], 0
    for token in range(num_tokens + 1):
        latest = max(latest, first_step.get(token, latest))
        starts_s.append(min(round(latest * ALIGNMENT_STEP_S, 2), duration_s))
    return starts_s


def _without_outer_silence(words: Sequence[Word]) -> tuple[Word, ...]:
    """Shorten the first and the last word to twice the usual length of a word.

    The attention of the first token begins at 0 and that of the last ends with the audio, however long the silence.
    """
    if not words:
        return ()
    longest_s = 2 * float(np.median([word.end_s - word.start_s for word in words]))
    first = replace(words[0], start_s=round(max(words[0].start_s, words[0].end_s - longest_s), 2))
    rest = [first, *words[1:]]
    last = rest[-1]
    rest[-1] = replace(last, end_s=round(min(last.end_s, last.start_s + longest_s), 2))
    return tuple(rest)
