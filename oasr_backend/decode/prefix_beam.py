"""CTC prefix beam search: the likeliest texts, each with the probability of all its paths together.

After Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs"
(2014), without a language model. Beside each text's probability it keeps the best single path, which says when each
token was said. It knows nothing of text.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log1p

import numpy as np

from oasr_backend.decode.ctc import Hypothesis, LogProbs, Token

NO_TOKEN = -1

MAX_OPEN_TOKENS = 32
"""Tokens at the end of the best text that alternatives may differ in: some seconds of speech in letters.

It is looked at when twice as many are open.
"""


class PrefixBeamDecoder:
    """Keeps the `beam_size` likeliest prefixes; each frame may extend them by its `beam_size` likeliest tokens.

    What all of them share is settled: it is kept as tokens, and forgotten by the search, so that a stream of hours
    costs no more than one of seconds.
    """

    def __init__(self, beam_size: int, blank_id: int = 0) -> None:
        self._beam_size = beam_size
        self._blank_id = blank_id
        self._settled: list[Token] = []
        self._num_stable = 0
        self._num_frames = 0
        start = _Path(0.0, None)
        self._beams = [_Beam(_Prefix(None, NO_TOKEN), 0.0, -inf, start, _NO_PATH)]

    def advance(self, log_probs: LogProbs) -> None:
        num_tokens = min(self._beam_size, log_probs.shape[1] - 1)
        spoken = log_probs.copy()
        spoken[:, self._blank_id] = -inf
        likeliest = np.argsort(-spoken, axis=1, kind="stable")[:, :num_tokens]
        for row, token_ids in zip(log_probs.tolist(), likeliest.tolist(), strict=True):
            self._step(row, token_ids)
            self._close_alternatives()
            self._num_frames += 1
        self._settle()

    def best(self) -> Hypothesis:
        open_tokens = _tokens_of(self._beams[0].best_path)
        return Hypothesis((*self._settled, *open_tokens), self._num_stable)

    def _step(self, row: Sequence[float], token_ids: Sequence[int]) -> None:
        """Take one frame: every text stays, or grows by one token; the likeliest go on."""
        frame = self._num_frames
        stayed = [beam.stay(row, row[self._blank_id], frame) for beam in self._beams]
        children = self._merge_children(stayed, row)
        ranked = [(-beam.log_prob, index, NO_TOKEN) for index, beam in enumerate(stayed)]
        floor = max(ranked)[0] if len(ranked) == self._beam_size else inf
        for index, beam in enumerate(self._beams):
            for token in token_ids:
                rank = -beam.grown_log_prob(token, row[token])
                if rank < floor and (index, token) not in children:
                    ranked.append((rank, index, token))
        self._beams = [
            stayed[index]
            if token == NO_TOKEN
            else self._beams[index].grow(token, row[token], frame)
            for _, index, token in heapq.nsmallest(self._beam_size, ranked)
        ]

    def _merge_children(
        self, stayed: Sequence[_Beam], row: Sequence[float]
    ) -> set[tuple[int, int]]:
        """Where a text grows into one that is kept already, add its paths to that; return those as (text, token)."""
        indices = {id(beam.prefix): index for index, beam in enumerate(self._beams)}
        merged = set()
        for child in stayed:
            token = child.prefix.token
            index = indices.get(id(child.prefix.parent))
            if index is not None:
                child.merge(self._beams[index].grow(token, row[token], self._num_frames))
                merged.add((index, token))
        return merged

    def _close_alternatives(self) -> None:
        """Drop the texts that differ from the best one long ago, so that no doubt stays open for ever."""
        best = self._beams[0].prefix
        if best.depth - len(self._settled) <= 2 * MAX_OPEN_TOKENS:
            return
        depth = best.depth - MAX_OPEN_TOKENS
        decided = best.ancestor(depth)
        self._beams = [beam for beam in self._beams if beam.prefix.ancestor(depth) is decided]
        self._settle()

    def _settle(self) -> None:
        """Take what all prefixes share out of the search, but for the last token, which a frame may still repeat."""
        shared = _deepest_shared([beam.prefix for beam in self._beams])
        self._num_stable = shared.depth
        root = shared.parent
        if root is None or root.depth == len(self._settled):
            return
        num_settled = root.depth - len(self._settled)
        self._settled += _tokens_of(self._beams[0].best_path)[:num_settled]
        for beam in self._beams:
            beam.drop_first(num_settled)
        root.parent = None


class _Prefix:
    """A text as the last token of a shorter one; equal texts are one object while anybody holds it.

    depth: its tokens.
    """

    __slots__ = ("__weakref__", "_children", "depth", "parent", "token")

    def __init__(self, parent: _Prefix | None, token: int) -> None:
        self.parent = parent
        self.token = token
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self._children: dict[int, weakref.ref[_Prefix]] = {}

    def child(self, token: int) -> _Prefix:
        """Return this text with one more token."""
        known = self._children.get(token)
        prefix = known() if known is not None else None
        if prefix is None:
            prefix = _Prefix(self, token)
            self._children[token] = weakref.ref(prefix)
        return prefix

    def ancestors(self) -> Iterator[_Prefix]:
        """Yield this text, and each shorter one that is not settled."""
        prefix: _Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent

    def ancestor(self, depth: int) -> _Prefix | None:
        """Return the first `depth` tokens of this text; None where it is shorter."""
        return next((prefix for prefix in self.ancestors() if prefix.depth == depth), None)


@dataclass(frozen=True, slots=True)
class _Path:
    """The best single path of a text: its log-probability, and its tokens from the last one backwards."""

    log_prob: float
    last: _Cell | None


@dataclass(frozen=True, slots=True)
class _Cell:
    """One token on a path, and the ones before it."""

    before: _Cell | None
    token: Token


_NO_PATH = _Path(-inf, None)


class _Beam:
    """A text: the log-probability of its paths that end in a blank, and of those that do not; the best path of each."""

    __slots__ = ("blank", "blank_path", "log_prob", "prefix", "token", "token_path")

    def __init__(
        self, prefix: _Prefix, blank: float, token: float, blank_path: _Path, token_path: _Path
    ) -> None:
        self.prefix = prefix
        self.blank, self.token = blank, token
        self.blank_path, self.token_path = blank_path, token_path
        self.log_prob = _log_add(blank, token)

    @property
    def best_path(self) -> _Path:
        blank, token = self.blank_path, self.token_path
        return token if token.log_prob > blank.log_prob else blank

    def stay(self, row: Sequence[float], blank_log_prob: float, frame: int) -> _Beam:
        """Return the beam after a frame that adds no token: a blank, or the last token once more."""
        best = self.best_path
        blank_path = _Path(best.log_prob + blank_log_prob, best.last)
        blank = self.log_prob + blank_log_prob
        if self.prefix.token == NO_TOKEN:
            return _Beam(self.prefix, blank, -inf, blank_path, _NO_PATH)
        log_prob = row[self.prefix.token]
        repeated = _repeat(self.token_path, log_prob, frame)
        return _Beam(self.prefix, blank, self.token + log_prob, blank_path, repeated)

    def grown_log_prob(self, token: int, log_prob: float) -> float:
        """Return the log-probability of the text with one more token, which a repeated one is only after a blank."""
        return (self.blank if token == self.prefix.token else self.log_prob) + log_prob

    def grow(self, token: int, log_prob: float, frame: int) -> _Beam:
        """Return the text with one more token."""
        before = self.blank_path if token == self.prefix.token else self.best_path
        cell = _Cell(before.last, Token(token, frame, frame + 1, log_prob))
        path = _Path(before.log_prob + log_prob, cell)
        grown = self.grown_log_prob(token, log_prob)
        return _Beam(self.prefix.child(token), -inf, grown, _NO_PATH, path)

    def merge(self, grown: _Beam) -> None:
        """Add the paths by which a shorter text has just become this one."""
        self.token = _log_add(self.token, grown.token)
        self.token_path = max(self.token_path, grown.token_path, key=_log_prob)
        self.log_prob = _log_add(self.blank, self.token)

    def drop_first(self, num_tokens: int) -> None:
        """Forget the first tokens of the paths."""
        self.blank_path = _shorten(self.blank_path, num_tokens)
        self.token_path = _shorten(self.token_path, num_tokens)


def _repeat(path: _Path, log_prob: float, frame: int) -> _Path:
    """Return a path whose last token lasts one frame longer."""
    cell = path.last
    if cell is None:
        return _NO_PATH
    best = max(cell.token.log_prob, log_prob)
    token = Token(cell.token.id, cell.token.start, frame + 1, best)
    return _Path(path.log_prob + log_prob, _Cell(cell.before, token))


def _tokens_of(path: _Path) -> list[Token]:
    tokens = []
    cell = path.last
    while cell is not None:
        tokens.append(cell.token)
        cell = cell.before
    return tokens[::-1]


def _shorten(path: _Path, num_tokens: int) -> _Path:
    cell = None
    for token in _tokens_of(path)[num_tokens:]:
        cell = _Cell(cell, token)
    return _Path(path.log_prob, cell)


def _deepest_shared(prefixes: Sequence[_Prefix]) -> _Prefix:
    """Return the longest text that begins all the given ones."""
    counts: dict[int, int] = {}
    for prefix in prefixes:
        for ancestor in prefix.ancestors():
            counts[id(ancestor)] = counts.get(id(ancestor), 0) + 1
    return next(a for a in prefixes[0].ancestors() if counts[id(a)] == len(prefixes))


def _log_add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -inf else high + log1p(exp(low - high))


def _log_prob(path: _Path) -> float:
    return path.log_prob
