"""One example as a training step sees it: augmented features and the letters to be heard.

It knows nothing of models or torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oasr_backend.training import augment
from oasr_backend.training.batches import Item
from oasr_backend.training.corpus import Corpus
from oasr_backend.training.fbank import fbank

SPACE = "▁"
UNITS = ("<blank>", "<unk>", "'", *"abcdefghijklmnopqrstuvwxyz", SPACE, "<sos/eos>")
"""The tokens by number, as WeNet writes them in units.txt. Number 0 is CTC's blank."""

_NUMBERS = {unit: number for number, unit in enumerate(UNITS)}


def encode(text: str) -> list[int]:
    """Return the letters of `text` as numbers of `UNITS`."""
    return [_NUMBERS[SPACE if letter == " " else letter] for letter in text]


def decode(numbers: Sequence[int]) -> str:
    """Return the text of CTC's best path: repeats merged, blanks dropped."""
    merged = [n for n, before in zip(numbers, [0, *numbers[:-1]], strict=True) if n != before]
    letters = [UNITS[number] for number in merged if len(UNITS[number]) == 1]
    return " ".join("".join(letters).replace(SPACE, " ").split())


def make_example(
    corpus: Corpus, item: Item, seed: Sequence[int]
) -> tuple[NDArray[np.float32], list[int]]:
    """Return (frames, 80) float32 augmented features and the tokens of an item.

    The same seed gives the same example, whatever was made before.
    """
    random = np.random.default_rng(seed)
    pauses = [np.zeros(int(random.uniform(0.05, 1.0) * 16000), np.float32) for _ in item]
    pieces = [
        piece for pair in zip(map(corpus.waveform, item), pauses, strict=True) for piece in pair
    ]
    speech = np.concatenate(pieces[:-1])
    other = corpus.waveform(int(random.integers(len(corpus))))
    features = fbank(augment.distort(speech, other, random))
    features = augment.mask_spectrum(augment.warp_mel_axis(features, random), random)
    return features, encode(" ".join(corpus.texts[index] for index in item))


def feature_statistics(
    corpus: Corpus, num_examples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation, (80,) each, over the frames of augmented examples."""
    random = np.random.default_rng(seed)
    indices = random.choice(len(corpus), min(num_examples, len(corpus)), replace=False)
    frames = np.concatenate(
        [make_example(corpus, (int(index),), (seed, int(index)))[0] for index in indices]
    )
    return frames.mean(axis=0, dtype=np.float64), frames.std(axis=0, dtype=np.float64)
