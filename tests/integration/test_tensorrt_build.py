"""Plans really built, by TensorRT for RTX, which needs no GPU for it; what is built is read off the parsed network."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, read_bundle
from oasr_backend.contract import CONTRACTS
from oasr_backend.errors import ConfigError
from oasr_backend.export.bundle import export_bundle
from oasr_backend.export.wenet import load_checkpoint
from oasr_backend.models.ctc import demo_model
from oasr_backend.plans.build import BuildOptions, build_plans, compile_plan
from oasr_backend.plans.fingerprint import check_fingerprint, plan_path, read_fingerprint, sha256
from oasr_backend.plans.library import load_flavour
from oasr_backend.plans.precision import in_precision
from oasr_backend.plans.profiles import Sizing, profiles

DATA = Path(__file__).parents[1] / "data"
OPTIONS = BuildOptions(
    "tensorrt_rtx",
    precision="fp16",
    sizing=Sizing(rungs=(1, 4), buckets_s=(2.5, 10.0)),
    compute_capabilities=("8.6", "8.9", "12.0"),
)
NAMES = (FEATURES_FILE, ENCODER_FILE, CHUNK_FILE)


@pytest.fixture(scope="module")
def library():
    return load_flavour("tensorrt_rtx")


@pytest.fixture(scope="module")
def parity_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    export_bundle(load_checkpoint(DATA / "wenet_parity"), folder, None, 4, True)
    return folder


def test_all_graphs_of_the_demo_model_compile_for_three_cards(library, tmp_path):
    phases = []

    def on_step(*step):
        phases.append(step)
        return True

    options = replace(OPTIONS, output=tmp_path / "plans")  # which is made
    plans = build_plans(library, demo_model(), options, on_step)
    assert [plan.name for plan in plans] == [
        f"{Path(name).stem}.tensorrt_rtx.plan" for name in NAMES
    ]
    for name, plan in zip(NAMES, plans, strict=True):
        assert plan.stat().st_size > 100_000
        found = read_fingerprint(plan, "")
        assert found.onnx_sha256 == sha256(demo_model() / name)
        assert found.version == library.__version__
        for card in ("8.6", "8.9", "12.0"):
            check_fingerprint(plan, replace(found, compute_capabilities=(card,)), "")
    assert phases
    assert all(0 <= done <= total for _, done, total in phases)
    assert len(list((tmp_path / "plans").iterdir())) == 2 * len(NAMES)


def test_a_plan_that_fits_is_kept_where_only_what_is_needed_is_built(library, tmp_path):
    options = replace(OPTIONS, output=tmp_path, compute_capabilities=("8.9",), if_needed=True)
    first = build_plans(library, demo_model(), options)
    written = [plan.stat().st_mtime_ns for plan in first]
    assert [plan.stat().st_mtime_ns for plan in build_plans(library, demo_model(), options)] == (
        written
    )
    build_plans(library, demo_model(), replace(options, precision="fp32"))
    features, encoder, chunk = [plan.stat().st_mtime_ns for plan in first]
    assert features == written[0]
    assert (encoder > written[1], chunk > written[2]) == (True, True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_parity_model_compiles_in_every_precision(library, parity_bundle, name, precision):
    bundle = read_bundle(parity_bundle)
    graph = onnx.load(str(parity_bundle / name))
    if name != FEATURES_FILE:
        graph = in_precision(graph, precision)
    plan = compile_plan(
        library, graph.SerializeToString(), profiles(name, bundle, OPTIONS.sizing), OPTIONS
    )
    assert len(plan) > 10_000


@pytest.mark.parametrize("name", NAMES)
def test_the_parsed_network_has_the_contract_s_tensors(library, name):
    builder = library.Builder(library.Logger(library.Logger.ERROR))
    network = builder.create_network(1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = library.OnnxParser(network, library.Logger(library.Logger.ERROR))
    assert parser.parse((demo_model() / name).read_bytes())
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    assert [each.name for each in inputs] == list(CONTRACTS[name].inputs)
    assert [each.name for each in outputs] == list(CONTRACTS[name].outputs)
    [wanted, _] = profiles(name, read_bundle(demo_model()), OPTIONS.sizing)
    for each in inputs:
        assert len(each.shape) == len(CONTRACTS[name].inputs[each.name].axes)
        if each.name in wanted:
            for size, least, most in zip(
                each.shape, wanted[each.name].least, wanted[each.name].most, strict=True
            ):
                assert size == -1 or least == size == most
        assert not each.is_shape_tensor


def test_a_plan_that_was_damaged_is_built_anew(library, tmp_path):
    options = replace(OPTIONS, output=tmp_path, compute_capabilities=("8.9",), if_needed=True)
    features, *_ = build_plans(library, demo_model(), options)
    whole = features.stat().st_size
    os.truncate(features, 1000)
    build_plans(library, demo_model(), options)
    assert features.stat().st_size == pytest.approx(whole, rel=0.1)


def test_a_build_that_is_told_to_stop_leaves_no_half_plan(library, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build_plans(library, demo_model(), replace(OPTIONS, output=tmp_path), lambda *_: False)
    assert not list(tmp_path.iterdir())


class TestErrors:
    @pytest.mark.parametrize("card", ["89", "x", "8.9.1", ""])
    def test_a_card_that_is_none_is_named(self, card):
        with pytest.raises(ConfigError, match=r"compute capability is '.*'; it must be as 8\.9"):
            replace(OPTIONS, compute_capabilities=(card,))

    def test_so_is_one_that_is_named_twice_and_memory_that_is_none(self):
        with pytest.raises(ConfigError, match=r"'8\.9'; it must be as 8\.9, and none twice"):
            replace(OPTIONS, compute_capabilities=("8.9", "8.9"))
        with pytest.raises(ConfigError, match="workspace_mb is 0; it must be from 1"):
            replace(OPTIONS, workspace_mb=0)

    def test_a_folder_that_cannot_be_written_is_named_before_anything_is_built(
        self, library, tmp_path
    ):
        (tmp_path / "file").touch()
        for change in ({"output": tmp_path / "file"}, {"timing_cache": tmp_path / "file" / "x"}):
            with pytest.raises(ConfigError, match="file cannot be written to"):
                build_plans(
                    library, demo_model(), replace(OPTIONS, **{"output": tmp_path, **change})
                )
        assert [each.name for each in tmp_path.iterdir()] == ["file"]

    def test_a_card_that_it_does_not_know_is_named(self, library, tmp_path):
        options = replace(OPTIONS, output=tmp_path, compute_capabilities=("3.5",))
        with pytest.raises(ConfigError, match=r"compute capability 3\.5 is none that this"):
            build_plans(library, demo_model(), options)
        assert not list(tmp_path.iterdir())

    def test_a_graph_that_breaks_the_contract_is_refused_before_anything_is_built(
        self, library, tmp_path
    ):
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        for path in demo_model().iterdir():
            if path.is_file():
                (bundle / path.name).write_bytes(path.read_bytes())
        metadata = json.loads((bundle / "bundle.json").read_text())
        metadata["streaming"]["num_planes"] += 1
        (bundle / "bundle.json").write_text(json.dumps(metadata))
        with pytest.raises(ConfigError, match=r"chunk\.onnx: pool is float"):
            build_plans(library, bundle, OPTIONS)
        assert not list(bundle.glob("*.plan"))

    def test_no_graph_is_refused(self, library):
        with pytest.raises(ConfigError, match="TensorRT cannot read the graph"):
            compile_plan(library, b"no graph", [], OPTIONS)

    def test_a_flavour_that_is_not_installed_is_named(self):
        with pytest.raises(ConfigError) as caught:
            load_flavour("tensorrt")
        assert str(caught.value) == "tensorrt is not installed: docs/tensorrt.md says how"

    def test_the_plan_of_a_graph_lies_beside_it(self):
        assert plan_path(Path("a/chunk.onnx"), "tensorrt") == Path("a/chunk.tensorrt.plan")
