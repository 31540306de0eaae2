"""What a WeNet `train.yaml` says of a model: every option is implemented, known to be without effect, or refused.

It knows neither weights nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from oasr_backend.bundle import FeatureSettings
from oasr_backend.errors import ConfigError, shown
from oasr_backend.export.conformer_config import ConformerConfig


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TRAINING_ONLY = _names(
    """
    accum_grad cv_loss dataset decoder decoder_conf deepspeed_config dtype epoch fp16_grad_sync grad_clip init_infos
    log_interval loss_dict lr max_epoch model_dir optim optim_conf save_interval save_states scheduler scheduler_conf
    step tag train_engine train_loss use_amp vocab_size
"""
)
"""Options of the file that change nothing once the encoder and its CTC layer are trained."""

DATA_TRAINING_ONLY = _names(
    """
    batch_conf batch_type cycle filter_conf list_shuffle list_shuffle_conf shuffle shuffle_conf sort sort_conf spec_aug
    spec_aug_conf spec_sub spec_sub_conf spec_trim spec_trim_conf speed_perturb speed_perturb_conf split_num
"""
)

LOSS_ONLY = _names(
    "apply_non_blank_embedding length_normalized_loss lsm_weight reverse_weight special_tokens"
)

ENCODER_FIXED: Mapping[str, Any] = {
    "concat_after": False,
    "conv_bias": True,
    "conv_inner_factor": 2,
    "final_norm": True,
    "head_dim": None,
    "input_layer": "conv2d",
    "key_bias": True,
    "layer_norm_type": "layer_norm",
    "macaron_style": True,
    "mlp_bias": True,
    "mlp_type": "position_wise_feed_forward",
    "n_kv_head": None,
    "normalize_before": True,
    "pos_enc_layer_type": "rel_pos",
    "positionwise_conv_kernel_size": 1,
    "query_bias": True,
    "selfattention_layer_type": "rel_selfattn",
    "use_cnn_module": True,
    "value_bias": True,
}
"""Options of which one value is implemented: WeNet's default, which also holds where the option is absent."""


@dataclass(frozen=True, slots=True)
class WenetOptions:
    """What `train.yaml` says.

    cmvn_file: as it stands there, or None for a model without CMVN.
    cmvn_is_json: JSON of sums; else Kaldi's text.
    symbol_table: the file of tokens, as it stands there.
    token_separator: what stands between tokens in a text.
    """

    conformer: ConformerConfig
    features: FeatureSettings
    blank_id: int
    cmvn_file: str | None
    cmvn_is_json: bool
    symbol_table: str
    token_separator: str


class Section:
    """One mapping of the file, whose every key must be asked for."""

    def __init__(self, source: str, values: Any) -> None:
        if not isinstance(values, dict):
            raise ConfigError(
                f"{source.rstrip('. :')} is {shown(values)}; it must be a mapping: correct it"
            )
        self._source = source
        self._values: dict[Any, Any] = dict(values)

    def take(self, key: str, default: Any) -> Any:
        """Return an option's value, of its default's type. None stands for absent."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        kind = type(default)
        if isinstance(value, int) and not isinstance(value, bool) and kind is float:
            value = float(value)
        if default is not None and type(value) is not kind:
            raise ConfigError(
                f"{self._source}{key} is {shown(value)}; it must be of type {kind.__name__}: correct it"
            )
        return value

    def section(self, key: str) -> Section:
        """Return a mapping within this one; empty where it is absent."""
        values = self._values.pop(key, None)
        return Section(f"{self._source}{key}.", {} if values is None else values)

    def expect(self, key: str, *allowed: Any) -> None:
        """Refuse any value but the allowed ones; the first of them is that of an absent option."""
        value = self._values.pop(key, allowed[0])
        if not any(type(value) is type(one) and value == one for one in allowed):
            choices = " or ".join(repr(one) for one in allowed)
            raise ConfigError(
                f"{self._source}{key} is {shown(value)}; only {choices} is implemented: "
                "such a model cannot be exported"
            )

    def ignore(self, keys: Iterable[str]) -> None:
        """Pass over options that change nothing of what is exported."""
        for key in keys:
            self._values.pop(key, None)

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        if self._values:
            named = ", ".join(f"{self._source}{key}" for key in sorted(map(str, self._values)))
            raise ConfigError(
                f"{named}: not implemented here, and may change what the model computes: remove it if it does not, "
                "else such a model cannot be exported"
            )


def read_options(path: Path) -> WenetOptions:
    """Read `train.yaml`. Raises ConfigError for what is not implemented, by name."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): correct it") from error
    root = Section(f"{path.name}: ", content)
    root.expect("model", "asr_model", "asrmodel")
    root.expect("encoder", "conformer")
    root.expect("lfmmi_dir", "", None)
    root.expect("use_lora", False)
    root.ignore(TRAINING_ONLY)
    _check_losses(root.section("model_conf"))
    cmvn_file, cmvn_is_json = _read_cmvn(root)
    symbol_table, separator = _read_tokenizer(root)
    conformer = _read_encoder(
        root.section("encoder_conf"),
        vocabulary_size=root.take("output_dim", 0),
        input_size=root.take("input_dim", 80),
    )
    features = _read_features(root.section("dataset_conf"), conformer.input_size)
    blank_id = _read_ctc(root)
    root.finish()
    return WenetOptions(
        conformer, features, blank_id, cmvn_file, cmvn_is_json, symbol_table, separator
    )


def _check_losses(section: Section) -> None:
    if section.take("ctc_weight", 0.5) <= 0:
        raise ConfigError(
            "train.yaml: model_conf.ctc_weight is 0, so the CTC layer was never trained: "
            "only a model trained with CTC can be exported"
        )
    section.expect("ignore_id", -1)
    section.ignore(LOSS_ONLY)
    section.finish()


def _read_encoder(section: Section, **given: int) -> ConformerConfig:
    values: dict[str, Any] = dict(given)
    for field in fields(ConformerConfig):
        if field.name not in given:
            values[field.name] = section.take(field.name, field.default)
    num_heads = values["attention_heads"]
    for key, value in ENCODER_FIXED.items():
        also = {
            "n_kv_head": (num_heads,),
            "head_dim": (values["output_size"] // max(num_heads, 1),),
        }
        section.expect(key, value, *also.get(key, ()))
    section.ignore(["gradient_checkpointing", "use_sdpa"])
    section.finish()
    return ConformerConfig(**values)


def _read_features(section: Section, num_mels: int) -> FeatureSettings:
    fbank, resample = section.section("fbank_conf"), section.section("resample_conf")
    section.expect("feats_type", "fbank")
    section.ignore(DATA_TRAINING_ONLY)
    section.finish()
    resample.expect("resample_rate", 16000)
    resample.finish()
    fbank.expect("num_mel_bins", num_mels)
    fbank.expect("frame_shift", 10, 10.0)
    fbank.expect("frame_length", 25, 25.0)
    fbank.ignore(["dither"])  # WeNet decodes without it, too
    fbank.finish()
    return FeatureSettings(num_mels=num_mels)


def _read_cmvn(root: Section) -> tuple[str | None, bool]:
    """Read either layout: `cmvn` with `cmvn_conf`, or `cmvn_file` beside `is_json_cmvn` up to 2023."""
    kind = root.take("cmvn", "")
    section = root.section("cmvn_conf")
    old_file, old_json = root.take("cmvn_file", ""), root.take("is_json_cmvn", True)
    file, is_json = section.take("cmvn_file", ""), section.take("is_json_cmvn", True)
    section.finish()
    if kind not in ("", "global_cmvn"):
        raise ConfigError(
            f"train.yaml: cmvn is {shown(kind)}; only 'global_cmvn' is implemented: such a model cannot be exported"
        )
    if kind:
        return file or old_file or "global_cmvn", is_json if file else old_json
    return old_file or None, old_json


def _read_tokenizer(root: Section) -> tuple[str, str]:
    root.expect("tokenizer", "char", "bpe")
    section = root.section("tokenizer_conf")
    symbol_table = section.take("symbol_table_path", "units.txt")
    separator = section.take("connect_symbol", "")
    words = section.take("split_with_space", False)
    section.expect("is_multilingual", False)
    section.expect("num_languages", 1)
    section.ignore(["bpe_path", "non_lang_syms_path", "special_tokens"])
    section.finish()
    return symbol_table, separator or (" " if words else "")


def _read_ctc(root: Section) -> int:
    root.expect("ctc", "ctc")
    section = root.section("ctc_conf")
    blank_id: int = section.take("ctc_blank_id", 0)
    section.ignore(["reduce", "blank_id"])
    section.finish()
    return blank_id
