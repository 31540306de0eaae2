"""What only a card can show: captured graphs, TensorRT plans and device memory (scripts/gpu_check.sh runs these)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from oasr_backend.bundle import read_bundle
from oasr_backend.models.ctc import CtcConfig, demo_model
from oasr_backend.models.ctc_streams import CtcStreams
from oasr_backend.plans.build import BuildOptions, build_plans
from oasr_backend.plans.fit import check_plans
from oasr_backend.plans.library import FLAVOURS, is_installed, load_flavour
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.cuda import CudaDevice, EagerCudaDevice
from oasr_backend.runtime.onnx import OnnxRuntime
from oasr_backend.runtime.tensorrt import tensorrt_runtime
from oasr_backend.runtime.torch import torch_runtime
from tests.integration.test_graphed_runtime import streamed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
]

DATA = Path(__file__).parents[1] / "data"
SIZING = Sizing(rungs=(1, 2, 4, 8), buckets_s=(2.5, 5.0, 10.0))
TOLERANCE = {"torch": 2e-2, "tensorrt": 5e-2, "tensorrt_rtx": 5e-2}
"""Of probabilities: TF32 rounds products to 10 bits."""


def of_torch(device):
    bundle = read_bundle(demo_model())
    place = torch.device("cuda")
    return torch_runtime(DATA / "demo_checkpoint", bundle, SIZING, device, place)


@pytest.fixture(scope="module", params=["torch", *FLAVOURS])
def runtime(request, tmp_path_factory):
    name = request.param
    if name == "torch":
        made = of_torch(CudaDevice())
    else:
        if not is_installed(name):
            pytest.skip(f"{name} is not installed here")
        plans = tmp_path_factory.mktemp(name)
        options = BuildOptions(name, precision="fp32", sizing=SIZING, output=plans)
        build_plans(load_flavour(name), demo_model(), options)
        bundle = read_bundle(demo_model())
        fitting = check_plans(load_flavour(name), demo_model(), plans, bundle, name)
        made = tensorrt_runtime(plans, fitting, bundle, name, CudaDevice())
    made.prewarm()
    made.name = name
    return made


def clips(rows, seconds):
    rng = np.random.default_rng(rows)
    longest = int(seconds * 16000)
    return [
        (0.1 * rng.normal(size=max(4000, longest - 1600 * row))).astype(np.float32)
        for row in range(rows)
    ]


def probabilities(runtime, utterances):
    log_probs, lengths = runtime.encode(utterances, 0, -1)
    return [np.exp(row[:length]) for row, length in zip(log_probs, lengths, strict=True)]


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("seconds", [2.4, 5.0, 9.9])
def test_graph_and_eager_and_cpu_agree_on_every_rung(runtime, rows, seconds):
    utterances = clips(rows, seconds)
    eager = of_torch(EagerCudaDevice())
    theirs = probabilities(OnnxRuntime(demo_model()), utterances)
    for who in (runtime, eager):
        for ours, other in zip(probabilities(who, utterances), theirs, strict=True):
            assert np.abs(ours - other).max() < TOLERANCE[runtime.name]


def test_batches_replay_graphs_and_allocate_nothing(runtime):
    utterances = clips(3, 4.0)
    runtime.encode(utterances, 0, -1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["num_device_alloc"]
    before_runs = runtime.runs()
    for _ in range(50):
        runtime.encode(utterances, 0, -1)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    assert runtime.runs() == {**before_runs, "replay": before_runs["replay"] + 100}


@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_streams_hear_on_the_card_what_they_hear_on_the_cpu(runtime, num_rows):
    paths = sorted(DATA.glob("c*/*.wav"))[:num_rows]
    spoken = [soundfile.read(path, dtype="float32")[0] for path in paths]
    ours = streamed(CtcStreams(CtcConfig(), num_rows, runtime), spoken, num_rows)
    theirs = streamed(CtcStreams(CtcConfig(runtime="onnx"), num_rows), spoken, num_rows)
    assert [each.transcript.text for each in ours] == [each.transcript.text for each in theirs]
