"""Reading a WeNet checkpoint folder: what is taken, and what is refused in which words."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from oasr_backend.bundle import FeatureSettings
from oasr_backend.errors import ConfigError
from oasr_backend.export.cmvn import read_cmvn
from oasr_backend.export.wenet import load_checkpoint, save_checkpoint
from oasr_backend.export.wenet_options import read_options

SAMPLE = Path(__file__).parents[1] / "data" / "wenet_parity"


@pytest.fixture
def folder(tmp_path):
    for name in ("final.pt", "train.yaml", "units.txt", "global_cmvn"):
        shutil.copyfile(SAMPLE / name, tmp_path / name)
    return tmp_path


def change(folder, path, value):
    """Set one option of train.yaml, named as section.option; a value of ... removes it."""
    options = yaml.safe_load((folder / "train.yaml").read_text())
    *sections, key = path.split(".")
    section = options
    for name in sections:
        section = section.setdefault(name, {})
    section[key] = value
    if value is ...:
        del section[key]
    (folder / "train.yaml").write_text(yaml.safe_dump(options))


def change_weights(folder, **changes):
    weights = torch.load(folder / "final.pt", weights_only=True)
    for name, value in changes.items():
        weights.pop(name.replace("__", "."), None)
        if value is not None:
            weights[name.replace("__", ".")] = value
    torch.save(weights, folder / "final.pt")


def assert_refused(folder, message):
    with pytest.raises(ConfigError) as error:
        load_checkpoint(folder)
    assert str(error.value) == message


def test_a_checkpoint_says_what_it_is(folder):
    checkpoint = load_checkpoint(folder)
    config = checkpoint.model.config
    assert (config.num_blocks, config.output_size, config.cnn_module_kernel) == (3, 64, 8)
    assert (config.causal, config.cnn_module_norm, config.use_dynamic_chunk) == (
        True,
        "layer_norm",
        True,
    )
    assert checkpoint.tokens[:3] == ("<blank>", "<unk>", "▁")
    assert checkpoint.features == FeatureSettings(80, 16000, 25.0, 10.0)
    assert (checkpoint.blank_id, checkpoint.token_separator) == (0, "")
    assert not checkpoint.model.training


def test_absent_options_have_wenets_defaults(folder):
    for name in ("causal", "cnn_module_norm", "cnn_module_kernel", "use_dynamic_chunk"):
        change(folder, f"encoder_conf.{name}", ...)
    options = read_options(folder / "train.yaml").conformer
    assert (options.causal, options.cnn_module_norm) == (False, "batch_norm")
    assert (options.cnn_module_kernel, options.use_dynamic_chunk) == (15, False)


NOT_IMPLEMENTED = [
    ("encoder", "transformer", "encoder is 'transformer'; only 'conformer' is implemented"),
    ("model", "paraformer", "model is 'paraformer'; only 'asr_model' or 'asrmodel' is implemented"),
    ("ctc", "else", "ctc is 'else'; only 'ctc' is implemented"),
    ("use_lora", True, "use_lora is True; only False is implemented"),
    ("lfmmi_dir", "exp", "lfmmi_dir is 'exp'; only '' or None is implemented"),
    ("tokenizer", "whisper", "tokenizer is 'whisper'; only 'char' or 'bpe' is implemented"),
    (
        "encoder_conf.input_layer",
        "conv2d6",
        "encoder_conf.input_layer is 'conv2d6'; only 'conv2d' is implemented",
    ),
    (
        "encoder_conf.pos_enc_layer_type",
        "abs_pos",
        "encoder_conf.pos_enc_layer_type is 'abs_pos'; only 'rel_pos' is implemented",
    ),
    (
        "encoder_conf.macaron_style",
        False,
        "encoder_conf.macaron_style is False; only True is implemented",
    ),
    (
        "encoder_conf.n_kv_head",
        2,
        "encoder_conf.n_kv_head is 2; only None or 4 is implemented",
    ),
    (
        "dataset_conf.resample_conf.resample_rate",
        8000,
        "dataset_conf.resample_conf.resample_rate is 8000; only 16000 is implemented",
    ),
    (
        "dataset_conf.feats_type",
        "mfcc",
        "dataset_conf.feats_type is 'mfcc'; only 'fbank' is implemented",
    ),
    (
        "dataset_conf.fbank_conf.num_mel_bins",
        40,
        "dataset_conf.fbank_conf.num_mel_bins is 40; only 80 is implemented",
    ),
    (
        "dataset_conf.fbank_conf.frame_length",
        20,
        "dataset_conf.fbank_conf.frame_length is 20; only 25 or 25.0 is implemented",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), NOT_IMPLEMENTED, ids=lambda case: str(case)[:30]
)
def test_an_option_with_another_value_than_ours_is_refused(folder, path, value, message):
    change(folder, path, value)
    assert_refused(folder, f"train.yaml: {message}: such a model cannot be exported")


@pytest.mark.parametrize(
    "path",
    [
        "new_thing",
        "predictor",
        "encoder_conf.stochastic_depth",
        "dataset_conf.mfcc_conf",
        "dataset_conf.fbank_conf.window_type",
        "cmvn_conf.per_speaker",
        "ctc_conf.blank_penalty",
        "model_conf.inter_ctc",
        "tokenizer_conf.lower_case",
    ],
)
def test_an_option_that_we_do_not_know_is_refused_by_name(folder, path):
    change(folder, path, 3)
    assert_refused(
        folder,
        f"train.yaml: {path}: not implemented here, and may change what the model computes: remove it if it does not, "
        "else such a model cannot be exported",
    )


def test_options_of_the_training_alone_are_passed_over(folder):
    for path in ("optim", "grad_clip", "decoder_conf.r_num_blocks", "dataset_conf.spec_aug"):
        change(folder, path, 3)
    load_checkpoint(folder)


def test_an_option_of_the_wrong_type_is_refused(folder):
    change(folder, "encoder_conf.causal", "yes")
    assert_refused(
        folder, "train.yaml: encoder_conf.causal is 'yes'; it must be of type bool: correct it"
    )


def test_a_section_that_is_no_mapping_is_refused(folder):
    change(folder, "encoder_conf", [1])
    assert_refused(folder, "train.yaml: encoder_conf is [1]; it must be a mapping: correct it")


def test_an_untrained_ctc_layer_is_refused(folder):
    change(folder, "model_conf.ctc_weight", 0)
    assert_refused(
        folder,
        "train.yaml: model_conf.ctc_weight is 0, so the CTC layer was never trained: "
        "only a model trained with CTC can be exported",
    )


def test_yaml_that_would_build_objects_is_refused(folder):
    (folder / "train.yaml").write_text("encoder: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match=r"train\.yaml cannot be read"):
        load_checkpoint(folder)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_pickle_that_would_run_code_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    torch.save({"encoder": Malicious()}, folder / "final.pt")
    with pytest.raises(ConfigError, match=r"final\.pt cannot be read as tensors only"):
        load_checkpoint(folder)
    assert not (folder / "executed").exists()


def test_a_checkpoint_with_more_than_tensors_is_refused(folder):
    torch.save({"epoch": 3, "model": {}}, folder / "final.pt")
    assert_refused(
        folder,
        f"{folder}/final.pt holds more than named tensors: save the model's state_dict() in it, "
        "without optimizer or epoch",
    )


def test_missing_weights_are_named(folder):
    change_weights(folder, ctc__ctc_lo__bias=None)
    assert_refused(
        folder,
        "final.pt misses ctc.ctc_lo.bias, which train.yaml asks for: take both from the same training",
    )


def test_weights_too_many_are_named(folder):
    change(folder, "encoder_conf.num_blocks", 2)
    with pytest.raises(ConfigError) as error:
        load_checkpoint(folder)
    assert str(error.value).startswith(
        "final.pt has encoder.encoders.2.conv_module.depthwise_conv.bias, "
    )
    assert str(error.value).endswith(
        " and 32 more, which no model of train.yaml has: take both from the same training"
    )


def test_misshapen_weights_are_named(folder):
    change_weights(folder, ctc__ctc_lo__bias=torch.zeros(31))
    assert_refused(
        folder,
        "final.pt: ctc.ctc_lo.bias is (31,), but by train.yaml it must be (32,): "
        "take both from the same training",
    )


def test_weights_that_are_no_numbers_are_refused(folder):
    change_weights(folder, ctc__ctc_lo__bias=torch.full((32,), torch.nan))
    assert_refused(
        folder,
        "final.pt: ctc.ctc_lo.bias holds numbers that are not finite: take an earlier checkpoint",
    )


def test_decoder_weights_and_old_unused_ones_are_ignored(folder):
    unused = {"encoder__encoders__0__concat_linear__weight": torch.zeros(1)}
    change_weights(folder, decoder__anything=torch.zeros(1), **unused)
    load_checkpoint(folder)


def test_weights_in_half_precision_are_computed_in_float32(folder):
    change_weights(folder, ctc__ctc_lo__bias=torch.zeros(32, dtype=torch.bfloat16))
    assert load_checkpoint(folder).model.ctc.ctc_lo.bias.dtype == torch.float32


def test_tokens_of_another_training_are_refused(folder):
    (folder / "units.txt").write_text("<blank> 0\na 1\n")
    assert_refused(
        folder,
        "train.yaml: output_dim is 32, but units.txt has 2 tokens: take both from the same training",
    )


@pytest.mark.parametrize("named", ["data/dict/lang_char.txt", "/home/somebody/units.txt"])
def test_a_file_named_by_the_path_of_its_training_is_found_by_its_name(folder, named):
    change(folder, "tokenizer_conf.symbol_table_path", named)
    load_checkpoint(folder)


@pytest.mark.parametrize("key", ["cmvn_conf.cmvn_file", "tokenizer_conf.symbol_table_path"])
def test_a_path_that_leads_out_of_the_folder_is_refused(folder, key):
    change(folder, key, "../secret")
    assert_refused(
        folder,
        "train.yaml names '../secret', a path that leads out of the checkpoint folder: "
        "copy the file into the folder and name it without '..'",
    )


@pytest.mark.parametrize("name", ["final.pt", "train.yaml", "units.txt", "global_cmvn"])
def test_a_link_out_of_the_folder_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).symlink_to(SAMPLE / name)
    assert_refused(
        folder,
        f"{folder}/{name} is a link out of the checkpoint folder: copy the file into the folder",
    )


@pytest.mark.parametrize("name", ["final.pt", "train.yaml", "units.txt"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert_refused(
        folder,
        f"{folder} has no {name}; a checkpoint folder needs final.pt, train.yaml, units.txt and, "
        "with CMVN, global_cmvn: copy it there",
    )


def test_the_old_layout_of_cmvn_and_its_absence_are_read(folder):
    for key in ("cmvn", "cmvn_conf"):
        change(folder, key, ...)
    change(folder, "cmvn_file", "exp/global_cmvn")
    change(folder, "is_json_cmvn", True)
    load_checkpoint(folder)
    change(folder, "cmvn_file", ...)
    change_weights(folder, encoder__global_cmvn__mean=None, encoder__global_cmvn__istd=None)
    cmvn = load_checkpoint(folder).model.encoder.global_cmvn
    assert cmvn.mean.abs().max() == 0
    assert cmvn.istd.min() == cmvn.istd.max() == 1


def test_cmvn_comes_from_the_weights_or_from_the_file(folder):
    inner = load_checkpoint(folder).model.encoder.global_cmvn
    (folder / "global_cmvn").rename(folder / "away")
    torch.testing.assert_close(load_checkpoint(folder).model.encoder.global_cmvn.mean, inner.mean)
    (folder / "away").rename(folder / "global_cmvn")
    change_weights(folder, encoder__global_cmvn__mean=None, encoder__global_cmvn__istd=None)
    outer = load_checkpoint(folder).model.encoder.global_cmvn
    torch.testing.assert_close(outer.mean, inner.mean)
    torch.testing.assert_close(outer.istd, inner.istd)


def test_a_cmvn_file_of_another_training_is_refused(folder):
    content = json.loads((folder / "global_cmvn").read_text())
    content["mean_stat"][3] *= 1.1
    (folder / "global_cmvn").write_text(json.dumps(content))
    assert_refused(
        folder,
        f"{folder}/global_cmvn and final.pt disagree about the features' mean or deviation: "
        "take both from the same training, or remove the file to go by the weights",
    )


def test_kaldis_text_says_the_same_as_json(tmp_path):
    sums, squares = [20.0, 40.0], [60.0, 420.0]
    json_path, text_path = tmp_path / "json", tmp_path / "text"
    json_path.write_text(json.dumps({"mean_stat": sums, "var_stat": squares, "frame_num": 10}))
    text_path.write_text(" [\n  20 40 10 \n  60 420 0 ]\n")
    for path, is_json in ((json_path, True), (text_path, False)):
        mean, istd = read_cmvn(path, is_json, 2)
        torch.testing.assert_close(mean, torch.tensor([2.0, 4.0]))
        torch.testing.assert_close(istd, torch.tensor([2.0**-0.5, 26.0**-0.5]))


@pytest.mark.parametrize(
    "text", ["", "[ 1 2 ]", "{}", '{"mean_stat": [1], "var_stat": [1], "frame_num": 0}']
)
@pytest.mark.parametrize("is_json", [True, False])
def test_a_cmvn_file_without_sums_is_refused(tmp_path, text, is_json):
    path = tmp_path / "global_cmvn"
    path.write_text(text)
    with pytest.raises(ConfigError, match="global_cmvn cannot be read as"):
        read_cmvn(path, is_json, 1)


def test_a_saved_checkpoint_loads_as_the_same_model(folder, tmp_path):
    before = load_checkpoint(folder)
    save_checkpoint(tmp_path / "saved", before.model, before.tokens, before.features)
    after = load_checkpoint(tmp_path / "saved")
    assert (after.tokens, after.features) == (before.tokens, before.features)
    assert after.model.config == before.model.config
    for name, value in before.model.state_dict().items():
        torch.testing.assert_close(after.model.state_dict()[name], value, rtol=0, atol=0)
