"""Reading and writing a bundle's metadata; no graph is run."""

import json
from pathlib import Path

import pytest

from oasr_backend.bundle import (
    Bundle,
    FeatureSettings,
    StreamingSettings,
    read_bundle,
    read_tokens,
    write_bundle,
)
from oasr_backend.errors import ConfigError

REMEDY = "export the bundle again with scripts/export_wenet.py"
STREAMING = StreamingSettings(
    num_planes=24, plane_width=17, conv_layers=3, conv_frames=7, conv_size=64
)
BUNDLE = Bundle(("<blank>", "▁", "é", "字"), FeatureSettings(), STREAMING, token_separator=" ")


def written(folder, bundle=BUNDLE, graphs=("features.onnx", "encoder.onnx", "chunk.onnx")):
    write_bundle(folder, bundle)
    for name in graphs:
        (folder / name).touch()
    return folder


def assert_refused(folder, message):
    with pytest.raises(ConfigError) as error:
        read_bundle(folder)
    assert str(error.value) == message.format(folder=folder, REMEDY=REMEDY)


def change(folder, **changes):
    path = folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("streaming", [STREAMING, None])
def test_a_bundle_reads_as_it_was_written(tmp_path, streaming):
    bundle = Bundle(BUNDLE.tokens, FeatureSettings(num_mels=40), streaming, blank_id=3)
    assert read_bundle(written(tmp_path, bundle)) == bundle


def test_frames_of_chunks_and_utterances_are_counted_as_the_graphs_do():
    assert [BUNDLE.chunk_frames(size) for size in (1, 8, 16)] == [7, 35, 67]
    assert [BUNDLE.encoder_frames(n) for n in (0, 6, 7, 10, 11, 203)] == [0, 0, 1, 1, 2, 50]


def test_a_missing_or_foreign_metadata_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"bundle\.json cannot be read"):
        read_bundle(tmp_path)
    for content in ("[]", '{"format": "else"}'):
        (tmp_path / "bundle.json").write_text(content)
        assert_refused(tmp_path, "{folder}/bundle.json is not of format 'oasr-ctc-2': {REMEDY}")


def test_a_field_of_a_newer_version_is_refused_by_name(tmp_path):
    change(written(tmp_path), beam=4)
    assert_refused(
        tmp_path, "{folder}/bundle.json holds ['beam'], which this version does not know: {REMEDY}"
    )
    change(written(tmp_path), features={"kind": "mfcc"})
    assert_refused(
        tmp_path, "{folder}/bundle.json holds ['kind'], which this version does not know: {REMEDY}"
    )


def test_incomplete_metadata_is_refused(tmp_path):
    change(written(tmp_path), streaming={"num_planes": 2})
    with pytest.raises(ConfigError, match=r"bundle\.json is not complete .*plane_width"):
        read_bundle(tmp_path)


def test_a_value_of_the_wrong_type_is_refused(tmp_path):
    change(written(tmp_path), blank_id="0")
    assert_refused(
        tmp_path, "{folder}/bundle.json: blank_id is '0'; it must be of type int: {REMEDY}"
    )


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "subsampling", -3),
        ("", "context_frames", 999999999999),
        ("", "offline_chunk_size", -77),
        ("features", "sample_rate_hz", 0),
        ("features", "frame_shift_ms", float("nan")),
        ("streaming", "chunk_size", 0),
    ],
)
def test_a_number_that_no_bundle_has_is_refused(tmp_path, part, name, value):
    metadata = json.loads((written(tmp_path) / "bundle.json").read_text())
    (metadata[part] if part else metadata)[name] = value
    (tmp_path / "bundle.json").write_text(json.dumps(metadata))
    with pytest.raises(ConfigError, match=rf"bundle\.json: {name} is {value}; it must be from"):
        read_bundle(tmp_path)


def test_metadata_nested_without_end_are_refused(tmp_path):
    (written(tmp_path) / "bundle.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"bundle\.json cannot be read"):
        read_bundle(tmp_path)


@pytest.mark.parametrize("name", ["features.onnx", "encoder.onnx", "chunk.onnx"])
def test_a_missing_graph_is_refused_by_name(tmp_path, name):
    (written(tmp_path) / name).unlink()
    assert_refused(tmp_path, "{folder} has no " + name + ", which its bundle.json names: {REMEDY}")


def test_an_offline_bundle_needs_no_chunk_graph(tmp_path):
    bundle = Bundle(BUNDLE.tokens, FeatureSettings(), None)
    assert (
        read_bundle(written(tmp_path, bundle, ["features.onnx", "encoder.onnx"])).streaming is None
    )


def test_a_blank_that_is_no_token_is_refused(tmp_path):
    change(written(tmp_path), blank_id=4)
    assert_refused(tmp_path, "{folder}/bundle.json: blank_id is 4; there are 4 tokens: {REMEDY}")


def test_tokens_are_read_in_the_order_of_their_ids(tmp_path):
    path = tmp_path / "units.txt"
    path.write_text("b 1\n<blank> 0\r\n\n▁c\t2\n", "utf-8")
    assert read_tokens(path) == ("<blank>", "b", "▁c")


@pytest.mark.parametrize("line", ["a", "a x", "a b 1", "b 0"])
def test_a_line_that_is_no_token_is_refused_by_its_number(tmp_path, line):
    path = tmp_path / "units.txt"
    path.write_text(f"<blank> 0\n{line}\n")
    with pytest.raises(ConfigError) as error:
        read_tokens(path)
    assert str(error.value) == (
        f"{path}:2 is {line!r}; a line must be a token and an id of its own: correct it"
    )


def test_ids_with_a_gap_are_refused(tmp_path):
    path = tmp_path / "units.txt"
    path.write_text("<blank> 0\na 2\n")
    with pytest.raises(ConfigError) as error:
        read_tokens(path)
    assert str(error.value) == f"{path} has 2 tokens; their ids must be 0 to 1: correct it"


def test_a_folder_that_is_not_there_or_is_a_checkpoint_is_refused_by_what_it_is(tmp_path):
    with pytest.raises(ConfigError) as error:
        read_bundle(Path("nowhere"))
    assert str(error.value) == (
        "model_dir is 'nowhere', which is no folder; a relative path counts from where the server was started "
        f"({Path.cwd()}): correct it"
    )
    (tmp_path / "final.pt").write_bytes(b"")
    with pytest.raises(
        ConfigError, match="which holds a checkpoint; a bundle is needed: export it"
    ):
        read_bundle(tmp_path)
