"""One example as a training step sees it: augmented features and the letters to be heard.

It knows nothing of models or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kaldi_native_fbank
import numpy as np
from numpy.typing import NDArray

from oasr_backend.audio import SAMPLE_RATE_HZ
from oasr_backend.features.fbank import NUM_MELS
from oasr_backend.training import augment
from oasr_backend.training.batches import Item
from oasr_backend.training.corpus import Corpus

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


@dataclass(frozen=True, slots=True)
class Recordings:
    """A corpus as it sounds in rooms and noise: of every utterance `num_versions` recordings.

    They are made when first asked for and kept as features, since making them costs as much as learning from them.
    """

    corpus: Corpus
    folder: Path
    seed: int
    num_versions: int = 3

    def features(self, index: int, version: int) -> NDArray[np.float32]:
        """Return (frames, 80) of utterance `index`; the same whenever they are asked for."""
        path = self.folder / str(version % self.num_versions) / f"{index}.npy"
        if not path.exists():
            self._record(index, version % self.num_versions, path)
        kept: NDArray[np.float16] = np.load(path)
        return kept.astype(np.float32)

    def _record(self, index: int, version: int, path: Path) -> None:
        random = np.random.default_rng((self.seed, version, index))
        other = self.corpus.waveform(int(random.integers(len(self.corpus))))
        heard = augment.distort(self.corpus.waveform(index), other, random)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, fbank(heard).astype(np.float16))
        partial.rename(path)  # a killed run leaves no half file under the name that is looked for


def fbank(samples: NDArray[np.float32], num_mels: int = NUM_MELS) -> NDArray[np.float32]:
    """Return Kaldi's filter bank (frames, num_mels) of (samples,) in ±1 at 16 kHz; serving's is within 1e-3 of it."""
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = num_mels
    extractor = kaldi_native_fbank.OnlineFbank(options)
    extractor.accept_waveform(SAMPLE_RATE_HZ, (samples * np.float32(32768)).tolist())
    frames = [extractor.get_frame(n) for n in range(extractor.num_frames_ready)]
    return np.asarray(frames, np.float32).reshape(-1, num_mels)


def make_example(
    recordings: Recordings, item: Item, epoch: int
) -> tuple[NDArray[np.float32], list[int]]:
    """Return (frames, 80) features, warped and masked anew in every epoch, and the tokens of an item.

    The same epoch gives the same example, whatever was made before.
    """
    random = np.random.default_rng((recordings.seed, epoch, item[0]))
    features = np.concatenate([recordings.features(index, epoch) for index in item])
    features = augment.mask_spectrum(augment.warp_mel_axis(features, random), random)
    return features, encode(" ".join(recordings.corpus.texts[index] for index in item))


def feature_statistics(
    recordings: Recordings, num_examples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation, (80,) each, over the frames of some recordings."""
    num_utterances = len(recordings.corpus)
    random = np.random.default_rng(recordings.seed)
    indices = random.choice(num_utterances, min(num_examples, num_utterances), replace=False)
    frames = np.concatenate([recordings.features(int(index), 0) for index in indices])
    return frames.mean(axis=0, dtype=np.float64), frames.std(axis=0, dtype=np.float64)
