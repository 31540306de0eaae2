"""The runtime of captured graphs, its work done by PyTorch on the CPU, beside ONNX Runtime: every rung and bucket."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from oasr_backend.bundle import read_bundle
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.ctc import CtcConfig, demo_model
from oasr_backend.models.ctc_offline import CtcRecognizer
from oasr_backend.models.ctc_streams import CtcStreams
from oasr_backend.models.streams import run
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.onnx import OnnxRuntime
from oasr_backend.runtime.torch import torch_runtime

DATA = Path(__file__).parents[1] / "data"
SIZING = Sizing(rungs=(1, 2, 4), buckets_s=(1.0, 2.5, 6.0))
OPTIONS = TranscribeOptions()


class CpuDevice:
    """Host memory for a device's; captured work is done again at every replay, on the memory it was captured with."""

    def buffer(self, spec):
        return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))

    def write(self, buffer, array):
        assert buffer.shape == np.shape(array)
        buffer.copy_(torch.from_numpy(np.asarray(array)))

    def read(self, buffer):
        return buffer.numpy().copy()

    def run(self, work):
        work()

    def capture(self, work):
        work()
        return work


def graphed(feature_rungs=()):
    return torch_runtime(
        DATA / "demo_checkpoint",
        read_bundle(demo_model()),
        SIZING,
        CpuDevice(),
        torch.device("cpu"),
        feature_rungs,
    )


@pytest.fixture(scope="module", params=[(), (1, 4)], ids=["ladder", "feature buckets 1 4"])
def runtime(request):
    runtime = graphed(request.param)
    runtime.prewarm()
    return runtime


@pytest.fixture(scope="module")
def onnx():
    return OnnxRuntime(demo_model(), num_threads=1)


def clip(num_samples, seed=0):
    return (0.1 * np.random.default_rng(seed).normal(size=num_samples)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.7, 5.9])
def test_whole_utterances_are_as_onnx_runtime_has_them(runtime, onnx, rows, seconds):
    longest = int(seconds * 16000)
    utterances = [clip(max(2000, longest - 3000 * row), row) for row in range(rows)]
    before = runtime.runs()
    ours, our_lengths = runtime.encode(utterances, 0, -1)
    theirs, their_lengths = onnx.encode(utterances, 0, -1)
    assert our_lengths.tolist() == their_lengths.tolist()
    for mine, other, length in zip(ours, theirs, our_lengths, strict=True):
        np.testing.assert_allclose(mine[:length], other[:length], atol=2e-3)
    assert runtime.runs() == {**before, "replay": before["replay"] + 2}


def test_a_shape_that_was_not_captured_runs_without_a_graph(runtime, onnx):
    utterances = [clip(16000, seed) for seed in range(5)]
    before = runtime.runs()
    ours, _ = runtime.encode(utterances, 0, -1)
    theirs, _ = onnx.encode(utterances, 0, -1)
    np.testing.assert_allclose(ours[:, : theirs.shape[1]], theirs, atol=2e-3)
    assert runtime.runs() == {**before, "eager": before["eager"] + 2}


def test_a_recognizer_counts_a_row_as_its_bucket(runtime):
    recognizer = CtcRecognizer(CtcConfig(), runtime)
    assert [recognizer.window_frames(n) for n in (40, 100, 101, 599)] == [100, 100, 250, 600]
    assert recognizer.parallel_batches == 1


def streamed(model, clips, num_rows):
    """Stream clips side by side, one chunk of each at a time, swapping one out on the way; return their texts."""
    streams = [model.open(OPTIONS, 16000) for _ in clips]
    for stream, samples in zip(streams, clips, strict=True):
        stream.accept(samples)
        stream.finish()
    for step in range(100):
        due = [s for s in streams if s.num_chunks_run < s.num_chunks_due]
        if not due:
            break
        if step % 3 == 2:
            model.swap_out(due[0])
        assert all(model.reserve(stream) for stream in due)
        run(model, due, num_rows)
    return [stream.partial(words=True) for stream in streams]


@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_streams_over_device_caches_hear_what_host_caches_hear(num_rows):
    clips = [
        np.concatenate([samples, np.zeros(8000, np.float32)])
        for samples in map(read_wave, sorted(DATA.glob("c*/*.wav"))[:num_rows])
    ]
    runtime = graphed()
    ours = streamed(CtcStreams(CtcConfig(), num_rows, runtime), clips, num_rows)
    theirs = streamed(CtcStreams(CtcConfig(), num_rows), clips, num_rows)
    assert [each.transcript.text for each in ours] == [each.transcript.text for each in theirs]
    assert any(each.transcript.text for each in ours)
    assert [each.transcript.tokens for each in ours] == [each.transcript.tokens for each in theirs]
    assert runtime.runs()["eager"] == 0
    assert runtime.runs()["replay"] > 0


def read_wave(path):
    return soundfile.read(path, dtype="float32")[0]
