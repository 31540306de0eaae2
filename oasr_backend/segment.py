"""A clip of any length as pieces that a model can take, one at a time, in memory of about one piece.

It knows nothing of how a place to cut is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from oasr_backend.audio import SAMPLE_RATE_HZ, AudioReader, Samples


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a clip.

    start_sample: where it begins in the clip, counted at 16 kHz.
    samples: (samples,) float32 at 16 kHz.
    """

    start_sample: int
    samples: Samples

    @property
    def start_s(self) -> float:
        return self.start_sample / SAMPLE_RATE_HZ


def pieces(reader: AudioReader, max_samples: int, cut: Callable[[Samples], int]) -> Iterator[Piece]:
    """Yield the pieces of a clip in order; together they are the clip, none longer than `max_samples`.

    cut: given samples longer than a piece, returns how many of them the next piece takes.
    An empty clip is one empty piece. A clip that fits is one piece, and `cut` is not asked.
    """
    start_sample = 0
    held = reader.read(max_samples + 1)
    while len(held) > max_samples:
        num_taken = cut(held)
        assert 0 < num_taken <= max_samples, f"a cut at {num_taken} of at most {max_samples}"
        yield Piece(start_sample, held[:num_taken])
        start_sample += num_taken
        held = np.concatenate([held[num_taken:], reader.read(num_taken)])
    if len(held) or start_sample == 0:
        yield Piece(start_sample, held)
