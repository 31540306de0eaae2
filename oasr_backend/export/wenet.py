"""Reading and writing a checkpoint folder in WeNet's layout: `final.pt`, `train.yaml`, `units.txt`, `global_cmvn`.

Such a folder comes from anywhere: nothing in it is executed, and nothing outside of it is read.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from oasr_backend.bundle import FeatureSettings, read_tokens, write_tokens
from oasr_backend.errors import ConfigError, shown
from oasr_backend.export.cmvn import read_cmvn, sums_of
from oasr_backend.export.conformer import ConformerCtc
from oasr_backend.export.wenet_options import ENCODER_FIXED, WenetOptions, read_options

WEIGHTS_FILE, OPTIONS_FILE, TOKENS_FILE, CMVN_FILE = (
    "final.pt",
    "train.yaml",
    "units.txt",
    "global_cmvn",
)
CMVN_KEYS = ("encoder.global_cmvn.mean", "encoder.global_cmvn.istd")
MAX_NAMED_KEYS = 5


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint; the model is in evaluation mode."""

    model: ConformerCtc
    tokens: tuple[str, ...]
    features: FeatureSettings
    blank_id: int = 0
    token_separator: str = ""


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder. Raises ConfigError naming the file, what is wrong and the remedy."""
    options = read_options(_inside(folder, OPTIONS_FILE))
    tokens = read_tokens(_inside(folder, options.symbol_table, TOKENS_FILE))
    size = options.conformer.vocabulary_size
    if len(tokens) != size:
        raise ConfigError(
            f"{OPTIONS_FILE}: output_dim is {size}, but {TOKENS_FILE} has {len(tokens)} tokens: "
            "take both from the same training"
        )
    if not 0 <= options.blank_id < size:
        raise ConfigError(
            f"{OPTIONS_FILE}: ctc_conf.ctc_blank_id is {options.blank_id}; it must be below {size}: correct it"
        )
    model = ConformerCtc(options.conformer)
    weights = read_weights(_inside(folder, WEIGHTS_FILE))
    model.load_state_dict(_checked(weights, model, _cmvn(folder, options, weights)))
    return Checkpoint(
        model.eval(), tokens, options.features, options.blank_id, options.token_separator
    )


def save_checkpoint(
    folder: Path, model: ConformerCtc, tokens: tuple[str, ...], features: FeatureSettings
) -> None:
    """Write a folder that `load_checkpoint` and WeNet read; the CMVN is that of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dict(model.state_dict()), folder / WEIGHTS_FILE)
    text = yaml.safe_dump(_train_yaml(model, features), sort_keys=True, allow_unicode=True)
    (folder / OPTIONS_FILE).write_text(text, "utf-8")
    write_tokens(folder / TOKENS_FILE, tokens)
    (folder / CMVN_FILE).write_text(json.dumps(sums_of(model.encoder.global_cmvn)) + "\n", "utf-8")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of named tensors and nothing else. Raises ConfigError."""
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{path} cannot be read as tensors only ({reason}): save the model's state_dict() in it"
        ) from error
    tensors_only = isinstance(weights, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    )
    if not tensors_only:
        raise ConfigError(
            f"{path} holds more than named tensors: save the model's state_dict() in it, without optimizer or epoch"
        )
    return dict(weights)


def _inside(folder: Path, named: str, usual: str | None = None) -> Path:
    """Return the path of a file that the folder must hold; see `_find`."""
    path = _find(folder, named, usual)
    if path is None:
        raise ConfigError(
            f"{folder} has no {usual or named}; a checkpoint folder needs {WEIGHTS_FILE}, {OPTIONS_FILE}, "
            f"{TOKENS_FILE} and, with CMVN, {CMVN_FILE}: copy it there"
        )
    return path


def _find(folder: Path, named: str, usual: str | None = None) -> Path | None:
    """Return the path of a file within the folder, None where it is not there.

    WeNet names files by their path on the machine that trained, so a file is also looked for by its name alone, and by
    its usual name. Neither `..` nor a link leads out of the folder.
    """
    if ".." in Path(named).parts:
        raise ConfigError(
            f"{OPTIONS_FILE} names {shown(named)}, a path that leads out of the checkpoint folder: "
            "copy the file into the folder and name it without '..'"
        )
    for name in (named.lstrip("/"), Path(named).name, usual):
        path = folder / name if name else folder
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"{path} is a link out of the checkpoint folder: copy the file into the folder"
            )
        return path
    return None


def _checked(
    weights: dict[str, Tensor], model: ConformerCtc, cmvn: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Return exactly what the model expects, in float32, or raise ConfigError for what is missing or misshapen."""
    expected = model.state_dict()
    given = {name: value for name, value in weights.items() if not _is_unused(name)}
    given |= dict(zip(CMVN_KEYS, cmvn or (), strict=False))
    for name in expected:  # neither has a meaning that could be missed
        if name.endswith("num_batches_tracked") or (cmvn is None and name in CMVN_KEYS):
            given.setdefault(name, expected[name])
    _refuse(f"misses {{}}, which {OPTIONS_FILE} asks for", set(expected) - set(given))
    _refuse(f"has {{}}, which no model of {OPTIONS_FILE} has", set(given) - set(expected))
    for name, value in given.items():
        if value.shape != expected[name].shape:
            raise ConfigError(
                f"{WEIGHTS_FILE}: {name} is {tuple(value.shape)}, but by {OPTIONS_FILE} it must be "
                f"{tuple(expected[name].shape)}: take both from the same training"
            )
        if not torch.isfinite(value.float()).all():
            raise ConfigError(
                f"{WEIGHTS_FILE}: {name} holds numbers that are not finite: take an earlier checkpoint"
            )
    return {name: value.to(expected[name].dtype) for name, value in given.items()}


def _is_unused(name: str) -> bool:
    """Say whether a parameter is none of the encoder's computation.

    The decoder rescores, which CTC decoding does not; positions are computed; old checkpoints carry a `concat_linear`
    that is only used with `concat_after`, which is refused.
    """
    return name.startswith("decoder.") or name.endswith(".pos_enc.pe") or ".concat_linear." in name


def _refuse(problem: str, names: set[str]) -> None:
    if names:
        listed = ", ".join(sorted(names)[:MAX_NAMED_KEYS])
        more = f" and {len(names) - MAX_NAMED_KEYS} more" if len(names) > MAX_NAMED_KEYS else ""
        raise ConfigError(
            f"{WEIGHTS_FILE} {problem.format(listed + more)}: take both from the same training"
        )


def _cmvn(
    folder: Path, options: WenetOptions, weights: dict[str, Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Return mean and inverse deviation, (mels,) float32 each; None for a model without.

    WeNet prefers those in `final.pt`. A file that says something else belongs to another model.
    """
    if options.cmvn_file is None:
        return None
    inner = tuple(weights[name].float() for name in CMVN_KEYS if name in weights)
    path = _find(folder, options.cmvn_file, CMVN_FILE)
    if path is None and len(inner) == 2:
        return inner[0], inner[1]
    path = path or _inside(folder, options.cmvn_file, CMVN_FILE)
    outer = read_cmvn(path, options.cmvn_is_json, options.features.num_mels)
    if len(inner) == 2 and not all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3)
        for a, b in zip(inner, outer, strict=True)
    ):
        raise ConfigError(
            f"{path} and {WEIGHTS_FILE} disagree about the features' mean or deviation: "
            "take both from the same training, or remove the file to go by the weights"
        )
    return (inner[0], inner[1]) if len(inner) == 2 else outer


def _train_yaml(model: ConformerCtc, features: FeatureSettings) -> dict[str, Any]:
    options = asdict(model.config)
    vocabulary_size, num_mels = options.pop("vocabulary_size"), options.pop("input_size")
    fixed = {name: value for name, value in ENCODER_FIXED.items() if name in _SAVED_FIXED}
    return {
        "model": "asr_model",
        "model_conf": {"ctc_weight": 1.0, "length_normalized_loss": False, "lsm_weight": 0.0},
        "encoder": "conformer",
        "encoder_conf": {**options, **fixed},
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 1, "linear_units": 1, "num_blocks": 1},
        "ctc": "ctc",
        "ctc_conf": {"ctc_blank_id": 0},
        "input_dim": num_mels,
        "output_dim": vocabulary_size,
        "tokenizer": "char",
        "tokenizer_conf": {"symbol_table_path": TOKENS_FILE, "split_with_space": False},
        "cmvn": "global_cmvn",
        "cmvn_conf": {"cmvn_file": CMVN_FILE, "is_json_cmvn": True},
        "dataset_conf": {
            "fbank_conf": {
                "num_mel_bins": features.num_mels,
                "frame_length": features.frame_length_ms,
                "frame_shift": features.frame_shift_ms,
                "dither": 0.0,
            },
            "resample_conf": {"resample_rate": features.sample_rate_hz},
        },
    }


_SAVED_FIXED = (
    "input_layer",
    "macaron_style",
    "normalize_before",
    "pos_enc_layer_type",
    "selfattention_layer_type",
    "use_cnn_module",
)
"""What older versions of WeNet know, too."""
