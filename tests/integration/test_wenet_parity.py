"""What WeNet itself answered (tests/data/wenet_parity), from PyTorch and from the exported graphs."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from oasr_backend.bundle import read_bundle
from oasr_backend.export.bundle import export_bundle
from oasr_backend.export.wenet import load_checkpoint
from tests.integration.paged_streams import PagedStreams

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "wenet_parity"
TOLERANCE = 1e-4
CHUNKS = [(16, 4), (16, -1), (8, 2)]
"""(chunk size, left chunks; -1 for all)"""


pytestmark = pytest.mark.timeout(600)  # an export takes half a minute of CPU time


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(FOLDER)


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    export_bundle(checkpoint, folder)
    return folder


def session(path):
    runner = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: runner.run(None, inputs)


@pytest.fixture(scope="module")
def run_offline(folder):
    run = session(folder / "encoder.onnx")
    return lambda features, lengths, chunk_size=0, num_left_chunks=-1: run(
        {
            "features": features,
            "feature_lengths": np.asarray(lengths, np.int64),
            "chunk_size": np.array(chunk_size),
            "num_left_chunks": np.array(num_left_chunks),
        }
    )


@pytest.fixture(scope="module")
def run_chunk(folder):
    return session(folder / "chunk.onnx")


@pytest.fixture(scope="module")
def settings(folder):
    return read_bundle(folder).streaming


def run_torch(checkpoint, features, lengths, *chunks):
    with torch.no_grad():
        outputs = checkpoint.model(torch.from_numpy(features), torch.from_numpy(lengths), *chunks)
    return [output.numpy() for output in outputs]


def assert_rows_equal(log_probs, lengths, rows):
    assert list(lengths) == [len(row) for row in rows]
    for ours, row in zip(log_probs, rows, strict=True):
        np.testing.assert_allclose(ours[: len(row)], row, rtol=0, atol=TOLERANCE)


def full_rows(expected):
    return [
        row[:n] for row, n in zip(expected["full_log_probs"], expected["out_lens"], strict=True)
    ]


def chunk_rows(expected, chunk_size, num_left_chunks):
    names = [f"stream_c{chunk_size}_l{num_left_chunks}_b{row}_log_probs" for row in range(3)]
    return [expected[name].reshape(-1, expected[name].shape[-1]) for name in names]


def utterances(expected):
    return [row[:n] for row, n in zip(expected["feats"], expected["feat_lens"], strict=True)]


def test_pytorch_gives_what_wenet_gives_for_a_padded_batch(checkpoint, expected):
    outputs = run_torch(checkpoint, expected["feats"], expected["feat_lens"].astype(np.int64))
    assert_rows_equal(*outputs, full_rows(expected))


@pytest.mark.parametrize("chunks", CHUNKS)
def test_pytorch_under_a_chunk_mask_gives_what_wenet_gives_chunk_by_chunk(
    checkpoint, expected, chunks
):
    lengths = expected["feat_lens"].astype(np.int64)
    outputs = run_torch(checkpoint, expected["feats"], lengths, *chunks)
    assert_rows_equal(*outputs, chunk_rows(expected, *chunks))


def test_the_chunk_mask_changes_the_result(expected):
    for chunks in CHUNKS:
        masked = chunk_rows(expected, *chunks)[0]
        assert np.abs(masked - full_rows(expected)[0]).max() > 100 * TOLERANCE


def test_the_offline_graph_gives_what_wenet_gives_for_a_padded_batch(run_offline, expected):
    outputs = run_offline(expected["feats"], expected["feat_lens"])
    assert_rows_equal(*outputs, full_rows(expected))


def test_the_offline_graph_gives_a_row_the_same_alone_and_beside_longer_ones(run_offline, expected):
    for features, row in zip(utterances(expected), full_rows(expected), strict=True):
        assert_rows_equal(*run_offline(features[None], [len(features)]), [row])


@pytest.mark.parametrize("chunks", CHUNKS)
def test_the_offline_graph_under_a_chunk_mask_gives_what_wenet_gives_chunk_by_chunk(
    run_offline, expected, chunks
):
    outputs = run_offline(expected["feats"], expected["feat_lens"], *chunks)
    assert_rows_equal(*outputs, chunk_rows(expected, *chunks))


def test_what_pads_a_batch_changes_nothing(run_offline, expected):
    loud = expected["feats"].copy()
    for row, length in enumerate(expected["feat_lens"]):
        loud[row, length:] = 1e4
    assert_rows_equal(*run_offline(loud, expected["feat_lens"]), full_rows(expected))


@pytest.mark.parametrize("block", [16, 8, 5])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_the_chunk_graph_gives_what_wenet_gives_stream_by_stream(
    run_chunk, settings, expected, chunks, block
):
    for features, row in zip(utterances(expected), chunk_rows(expected, *chunks), strict=True):
        streams = PagedStreams(run_chunk, settings, *chunks, block=block)
        stream = streams.open(features)
        while not stream.done:
            streams.step([stream])
        assert_rows_equal([np.concatenate(stream.log_probs)], [stream.offset], [row])


@pytest.mark.parametrize("chunks", CHUNKS)
def test_streams_at_mixed_offsets_share_a_forward_and_each_is_as_if_alone(
    run_chunk, run_offline, settings, expected, chunks
):
    """Streams join and leave at random, their blocks lie scattered, and some are swapped out and back."""
    choices = random.Random(str(chunks))
    streams = PagedStreams(run_chunk, settings, *chunks, block=choices.choice([4, 16]))
    truth = dict(enumerate(chunk_rows(expected, *chunks)))
    waiting = list(enumerate(utterances(expected)))
    for index in range(3, 12):
        features = random_features(choices.randrange(7, 400), seed=index)
        waiting.append((index, features))
        truth[index] = run_offline(features[None], [len(features)], *chunks)[0][0]
    num_steps = run_at_random(streams, waiting, truth, choices)
    assert num_steps < sum(-(-len(row) // chunks[0]) for row in truth.values())
    assert sorted(streams.free) == list(range(len(streams.pool)))


def run_at_random(streams, waiting, truth, choices):
    running, swapped, num_steps = {}, {}, 0
    while waiting or running or swapped:
        while waiting and len(running) < 4 and choices.random() < 0.6:
            index, features = waiting.pop(choices.randrange(len(waiting)))
            running[index] = streams.open(features)
        for index in [index for index in swapped if choices.random() < 0.3]:
            streams.swap_in(swapped[index])
            running[index] = swapped.pop(index)
        ready = [stream for stream in running.values() if choices.random() < 0.7]
        if ready:
            streams.step(choices.sample(ready, len(ready)))
            num_steps += 1
        for index in list(running):
            stream = running[index]
            if stream.done:
                streams.close(running.pop(index))
                log_probs = np.concatenate(stream.log_probs)
                assert_rows_equal([log_probs], [len(log_probs)], [truth[index]])
            elif choices.random() < 0.2:
                streams.swap_out(stream)
                swapped[index] = running.pop(index)
    return num_steps


def random_features(num_frames, seed):
    return np.random.default_rng(seed).normal(2, 4, (num_frames, 80)).astype(np.float32)


def test_a_row_that_only_fills_the_batch_changes_nothing(run_chunk, settings, expected):
    streams = PagedStreams(run_chunk, settings, 16, 4)
    stream = streams.open(utterances(expected)[0])
    while not stream.done:
        inputs = streams.inputs([stream], entries=5)
        filled = {
            name: np.concatenate([value, np.zeros_like(value)]) if name != "pool" else value
            for name, value in inputs.items()
        }
        outputs = run_chunk(filled)
        assert all(np.isfinite(output).all() for output in outputs)
        streams.store(stream, *(output[0] for output in outputs))
    row = chunk_rows(expected, 16, 4)[0]
    assert_rows_equal([np.concatenate(stream.log_probs)], [stream.offset], [row])


def test_features_that_are_no_numbers_leave_nothing_in_the_cache_that_could_spread(
    run_chunk, settings
):
    streams = PagedStreams(run_chunk, settings, 16, 4)
    features = random_features(67, seed=1)
    features[10:20] = [[np.nan], [np.inf]] * 5
    outputs = run_chunk(streams.inputs([streams.open(features)], entries=1))
    assert all(np.isfinite(output).all() for output in outputs)


def test_exporting_twice_gives_the_same_bytes(folder, tmp_path):
    """In a process of its own, where hashes and addresses differ."""
    script = ROOT / "scripts" / "export_wenet.py"
    command = [sys.executable, script, "--checkpoint-dir", FOLDER, "--output", tmp_path]
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["bundle.json", "chunk.onnx", "encoder.onnx", "features.onnx", "tokens.txt"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_bench_of_chunks_prints_a_line_for_each_batch_size(folder):
    command = [sys.executable, ROOT / "scripts" / "bench_chunks.py", folder, "--rounds", "1"]
    sizes = ["--batch-sizes", "1", "3"]
    output = subprocess.check_output(
        [*command, *sizes], text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert [line.split()[0] for line in output.splitlines()[2:]] == ["1", "3"]
