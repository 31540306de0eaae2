"""Which runtime a bundle gets on which machine, and what the log says of it."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from oasr_backend.bundle import read_bundle
from oasr_backend.errors import ConfigError
from oasr_backend.models.ctc import CtcConfig, CtcModel, demo_model
from oasr_backend.plans import fit
from oasr_backend.plans.fingerprint import (
    Fingerprint,
    as_text,
    fingerprint_path,
    plan_path,
    sha256,
)
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime import choose
from oasr_backend.runtime.choose import Wish, load_runtime
from oasr_backend.runtime.onnx import OnnxRuntime


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(demo_model(), folder)
    return folder


@pytest.fixture
def loaded(monkeypatch):
    """Names of the runtimes that were loaded, in place of loading those that need a card."""
    names = []
    loaders = {name: lambda *_, name=name: names.append(name) for name in choose.RUNTIMES[1:]}
    monkeypatch.setattr(choose, "_LOADERS", loaders)
    return names


def wish(folder, name="auto"):
    return Wish(name, folder, folder, 1, (1, 2), (), 16, 4)


def has_card(monkeypatch):
    monkeypatch.setattr(choose, "compute_capability", lambda: "8.9")
    monkeypatch.setattr(fit, "compute_capability", lambda: "8.9")
    monkeypatch.setattr(choose, "load_flavour", lambda _: SimpleNamespace(__version__="10.13"))


def add_plans(bundle, flavour, card="8.9"):
    """Leave plans beside a bundle's graphs, as they would be built for a card."""
    for name in read_bundle(bundle).graph_files:
        plan = plan_path(bundle / name, flavour)
        plan.write_bytes(b"plan")
        options = {"precision": "fp16", **asdict(Sizing())}
        made = Fingerprint(flavour, "10.13", (card,), sha256(bundle / name), options)
        fingerprint_path(plan).write_text(as_text(made, sha256(plan)))


def choice(folder, caplog):
    caplog.set_level(logging.INFO, "oasr_backend.runtime.choose")
    load_runtime(wish(folder), read_bundle(folder))
    return caplog.messages[-1]


def test_without_a_card_it_is_onnx_runtime_on_the_cpu(bundle, caplog):
    assert isinstance(load_runtime(wish(bundle), read_bundle(bundle)), OnnxRuntime)
    assert choice(bundle, caplog) == (
        f"runtime of {bundle}: onnx, since there is no NVIDIA driver here"
    )


def test_with_a_card_plans_come_first(bundle, loaded, monkeypatch, caplog):
    has_card(monkeypatch)
    add_plans(bundle, "tensorrt_rtx")
    assert choice(bundle, caplog) == (
        f"runtime of {bundle}: tensorrt_rtx, since there is no encoder.tensorrt.plan"
    )
    add_plans(bundle, "tensorrt")
    assert choice(bundle, caplog) == f"runtime of {bundle}: tensorrt, the best there is"
    assert loaded == ["tensorrt_rtx", "tensorrt"]


def test_plans_that_cannot_run_here_are_passed_over_and_the_log_says_why(
    bundle, loaded, monkeypatch, caplog
):
    has_card(monkeypatch)
    add_plans(bundle, "tensorrt", card="9.0")
    add_plans(bundle, "tensorrt_rtx")
    (bundle / "chunk.tensorrt_rtx.plan").unlink()
    text = choice(bundle, caplog)
    assert loaded == ["onnx"]
    assert (
        "features.tensorrt.plan was built for compute_capabilities 9.0, not 8.9: build it" in text
    )
    assert "chunk.tensorrt_rtx.plan is missing: build it: scripts/build_tensorrt.py" in text


def test_plans_whose_options_are_none_are_refused(bundle, monkeypatch):
    has_card(monkeypatch)
    add_plans(bundle, "tensorrt")
    path = bundle / "encoder.tensorrt.plan.json"
    for options in ({}, {"rungs": ["a"], "buckets_s": [1], "chunk_size": 1, "max_entries": 1}):
        path.write_text(json.dumps({**json.loads(path.read_text()), "options": options}))
        with pytest.raises(ConfigError, match=r"encoder.*json holds no fingerprint"):
            load_runtime(wish(bundle, "tensorrt"), read_bundle(bundle))


def test_torch_that_sees_no_card_is_refused(bundle, monkeypatch):
    has_card(monkeypatch)
    add_plans(bundle, "tensorrt")
    with pytest.raises(ConfigError, match=r"torch .* sees no card \(is it a build for CPUs\?\)"):
        load_runtime(wish(bundle, "tensorrt"), read_bundle(bundle))


def test_without_plans_torch_takes_the_checkpoint_in_the_bundle(
    bundle, loaded, monkeypatch, caplog
):
    has_card(monkeypatch)
    (bundle / "torch").mkdir()
    assert choice(bundle, caplog) == (
        f"runtime of {bundle}: torch, since there is no encoder.tensorrt.plan; there is no encoder.tensorrt_rtx.plan"
    )
    assert loaded == ["torch"]


def test_with_nothing_for_the_card_it_is_the_cpu_and_the_log_says_what_each_lacks(
    bundle, loaded, monkeypatch, caplog
):
    has_card(monkeypatch)
    assert choice(bundle, caplog) == (
        f"runtime of {bundle}: onnx, since there is no encoder.tensorrt.plan; there is no encoder.tensorrt_rtx.plan; "
        "the bundle has no checkpoint for torch; ONNX Runtime has no CUDA provider"
    )
    assert loaded == ["onnx"]


def test_a_runtime_that_needs_torch_says_so_where_it_is_missing(bundle, monkeypatch):
    has_card(monkeypatch)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    for name in ("tensorrt", "torch"):
        with pytest.raises(ConfigError) as caught:
            load_runtime(wish(bundle, name), read_bundle(bundle))
        assert str(caught.value) == (
            f"runtime is {name!r}, which needs torch for the card's memory and graphs; it is not installed: pip "
            "install 'oasr-backend[gpu]', or set runtime to onnx"
        )


def test_onnx_runtime_s_cuda_provider_must_be_there(bundle):
    with pytest.raises(ConfigError) as caught:
        load_runtime(wish(bundle, "onnx_cuda"), read_bundle(bundle))
    assert str(caught.value) == (
        "runtime is 'onnx_cuda'; this ONNX Runtime has no CUDA provider: install onnxruntime-gpu instead of "
        "onnxruntime, or choose another runtime"
    )


def test_torch_without_a_driver_is_refused(bundle):
    with pytest.raises(ConfigError, match="there is no NVIDIA driver here"):
        load_runtime(wish(bundle, "torch"), read_bundle(bundle))


def test_an_unknown_runtime_names_those_that_are_known():
    with pytest.raises(
        ConfigError, match=r"runtime is 'openvino'; it must be one of auto, tensorrt"
    ):
        CtcConfig(runtime="openvino")


@pytest.mark.parametrize("sizes", [(-1,), (0,), (4, 2), (2, 2)])
def test_sizes_of_the_features_graphs_that_are_none_are_refused(sizes):
    with pytest.raises(ConfigError, match="feature_graph_batch_buckets is "):
        CtcConfig(feature_graph_batch_buckets=sizes)


def test_a_model_asks_for_the_ladder_and_the_plans_that_its_options_name(bundle, monkeypatch):
    wishes = []
    monkeypatch.setattr(
        "oasr_backend.models.ctc.load_runtime", lambda wish, bundle: wishes.append(wish)
    )
    config = CtcConfig(
        str(bundle),
        runtime="tensorrt",
        plan_dir="/plans",
        preferred_batch_size=(1, 4),
        feature_graph_batch_buckets=(4,),
        num_left_chunks=-1,
        max_cache_s=12.8,
    )
    CtcModel(config)
    [asked] = wishes
    assert (asked.name, str(asked.plans)) == ("tensorrt", "/plans")
    assert (asked.rungs, asked.feature_rungs) == ((1, 4), (4,))
    assert (asked.chunk_size, asked.max_entries) == (16, 20)  # 0.64 s a chunk
