"""The mean and deviation of features, as WeNet stores them: sums over the training data.

It knows nothing of checkpoints or of models beyond their normalization.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oasr_backend.errors import ConfigError
from oasr_backend.export.conformer import GlobalCmvn

VARIANCE_FLOOR = 1e-20


def read_cmvn(path: Path, is_json: bool, num_mels: int) -> tuple[Tensor, Tensor]:
    """Read the sums over the training data, as JSON or as Kaldi's text.

    JSON has `mean_stat`, `var_stat` and `frame_num`; Kaldi's text is a matrix of two rows, sums and then sums of
    squares, with the count at the end of the first and 0 at the end of the second.
    Returns mean and 1 / deviation, (mels,) float32 each. Raises ConfigError.
    """
    try:
        text = path.read_text("utf-8")
        sums, squares, count = _from_json(text) if is_json else _from_kaldi(text)
        if not (sums.shape == squares.shape == (num_mels,) and count > 0):
            raise ValueError(f"not {num_mels} mel bins over at least one frame")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as {'JSON' if is_json else 'Kaldi text'} sums ({error}): correct it or is_json_cmvn"
        ) from error
    mean = sums / count
    variance = (squares / count - mean**2).clamp(min=VARIANCE_FLOOR)
    return mean.float(), variance.rsqrt().float()


def sums_of(cmvn: GlobalCmvn) -> dict[str, Any]:
    """Return the content of a JSON file that gives this mean and deviation: sums over one frame."""
    mean, istd = cmvn.mean.double(), cmvn.istd.double()
    return {
        "mean_stat": mean.tolist(),
        "var_stat": (istd**-2 + mean**2).tolist(),
        "frame_num": 1,
    }


def _from_json(text: str) -> tuple[Tensor, Tensor, float]:
    content = json.loads(text)
    return _vector(content["mean_stat"]), _vector(content["var_stat"]), float(content["frame_num"])


def _from_kaldi(text: str) -> tuple[Tensor, Tensor, float]:
    words = text.split()
    num_mels = (len(words) - 4) // 2
    if len(words) < 6 or len(words) % 2 or (words[0], words[-1]) != ("[", "]"):
        raise ValueError("not a matrix of two rows")
    numbers = _vector([float(word) for word in words[1:-1]])
    return numbers[:num_mels], numbers[num_mels + 1 : -1], float(numbers[num_mels])


def _vector(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
