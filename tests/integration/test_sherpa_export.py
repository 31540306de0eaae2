"""The files for sherpa-onnx, driven as its C++ code drives them (`online-wenet-ctc-model.cc`)."""

import numpy as np
import onnx
import onnxruntime
import pytest

from oasr_backend.export.bundle import streaming_settings
from oasr_backend.export.sherpa import export_sherpa
from oasr_backend.export.wenet import load_checkpoint
from tests.integration.test_wenet_parity import FOLDER, TOLERANCE

CHUNK_SIZE, NUM_LEFT_CHUNKS = 16, 4
CACHE_SIZE = CHUNK_SIZE * NUM_LEFT_CHUNKS


pytestmark = pytest.mark.timeout(600)  # an export takes half a minute of CPU time


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sherpa")
    checkpoint = load_checkpoint(FOLDER)
    settings = streaming_settings(checkpoint.model.config, CHUNK_SIZE, NUM_LEFT_CHUNKS)
    export_sherpa(checkpoint, folder, settings)
    return folder


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "expected.npz") as arrays:
        return dict(arrays)


def test_the_offline_model_gives_what_wenet_gives(folder, expected):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    log_probs, lengths = session.run(
        None, {"x": expected["feats"], "x_lens": expected["feat_lens"].astype(np.int64)}
    )
    assert list(lengths) == list(expected["out_lens"])
    for ours, row, length in zip(log_probs, expected["full_log_probs"], lengths, strict=True):
        np.testing.assert_allclose(ours[:length], row[:length], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("row", range(3))
def test_the_streaming_model_gives_what_wenet_gives(folder, expected, row):
    session = onnxruntime.InferenceSession(str(folder / "model-streaming.onnx"))
    names = [value.name for value in session.get_inputs()]
    features = expected["feats"][row, : expected["feat_lens"][row]]
    attn_cache = np.zeros((3, 4, CACHE_SIZE, 32), np.float32)
    conv_cache = np.zeros((3, 1, 64, 7), np.float32)
    offset, rows = CACHE_SIZE, []
    while (offset - CACHE_SIZE) * 4 + 7 <= len(features):
        chunk = features[(offset - CACHE_SIZE) * 4 :][: 4 * CHUNK_SIZE + 3]
        num_frames = (len(chunk) - 7) // 4 + 1
        chunk = np.pad(chunk, ((0, 4 * CHUNK_SIZE + 3 - len(chunk)), (0, 0)))
        mask = np.ones((1, 1, CACHE_SIZE + CHUNK_SIZE), bool)
        chunk_index = offset // CHUNK_SIZE - NUM_LEFT_CHUNKS
        if chunk_index < NUM_LEFT_CHUNKS:
            mask[..., : CACHE_SIZE - chunk_index * CHUNK_SIZE] = False
        if num_frames < CHUNK_SIZE:  # a short end, which sherpa-onnx itself never feeds
            mask[..., CACHE_SIZE + num_frames :] = False
        values = (chunk[None], [offset], [CACHE_SIZE], attn_cache, conv_cache, mask)
        inputs = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        log_probs, attn_cache, conv_cache = session.run(None, inputs)
        rows.append(log_probs[0, :num_frames])
        offset += CHUNK_SIZE
    truth = expected[f"stream_c16_l4_b{row}_log_probs"].reshape(-1, 32)
    np.testing.assert_allclose(np.concatenate(rows), truth, rtol=0, atol=TOLERANCE)


def test_the_models_carry_the_metadata_that_sherpa_onnx_asks_for(folder):
    assert metadata(folder / "model.onnx") == {
        "model_type": "wenet_ctc",
        "version": "1",
        "model_author": "wenet",
        "comment": "non-streaming",
        "subsampling_factor": "4",
        "vocab_size": "32",
    }
    assert metadata(folder / "model-streaming.onnx") == {
        "model_type": "wenet_ctc",
        "version": "1",
        "model_author": "wenet",
        "comment": "streaming",
        "subsampling_factor": "4",
        "vocab_size": "32",
        "chunk_size": "16",
        "left_chunks": "4",
        "head": "4",
        "num_blocks": "3",
        "output_size": "64",
        "cnn_module_kernel": "8",
        "right_context": "6",
    }
    assert (folder / "tokens.txt").read_text("utf-8").startswith("<blank> 0\n<unk> 1\n▁ 2\n")


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}
