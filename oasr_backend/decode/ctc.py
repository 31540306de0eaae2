"""CTC decoding, frame by frame: what a decoder is, and the greedy one.

A decoder belongs to one utterance or stream. It knows nothing of text: see vocabulary.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

LogProbs = NDArray[np.float32]
"""(frames, vocabulary) float32: natural logarithms of probabilities."""


@dataclass(frozen=True, slots=True)
class Token:
    """A decoded token on the best path: its first frame, the frame after its last, its best log-probability there."""

    id: int
    start: int
    end: int
    log_prob: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The best tokens so far; the first `num_stable` of them will never change."""

    tokens: tuple[Token, ...]
    num_stable: int

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)


class CtcDecoder(Protocol):
    """Takes an utterance's frames in order, in pieces of any size."""

    def advance(self, log_probs: LogProbs) -> None:
        """Take the next frames."""

    def best(self) -> Hypothesis:
        """Return the best hypothesis of the frames taken so far."""


class GreedyDecoder:
    """The likeliest token of each frame, repetitions folded and blanks dropped."""

    def __init__(self, blank_id: int = 0) -> None:
        self._blank_id = blank_id
        self._tokens: list[Token] = []
        self._last_id = blank_id
        self._num_frames = 0

    def advance(self, log_probs: LogProbs) -> None:
        best_ids = log_probs.argmax(axis=1)
        best = log_probs.max(axis=1, initial=-inf)
        for offset, (token_id, log_prob) in enumerate(
            zip(best_ids.tolist(), best.tolist(), strict=True)
        ):
            if token_id != self._blank_id:
                self._take(token_id, self._num_frames + offset, log_prob)
            self._last_id = token_id
        self._num_frames += len(log_probs)

    def best(self) -> Hypothesis:
        return Hypothesis(tuple(self._tokens), len(self._tokens))

    def _take(self, token_id: int, frame: int, log_prob: float) -> None:
        if token_id == self._last_id:
            token = self._tokens.pop()
            log_prob = max(log_prob, token.log_prob)
            self._tokens.append(Token(token_id, token.start, frame + 1, log_prob))
        else:
            self._tokens.append(Token(token_id, frame, frame + 1, log_prob))
