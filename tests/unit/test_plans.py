"""What TensorRT plans are built for and of, without TensorRT: profiles, the contract of the graphs, fingerprints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, read_bundle
from oasr_backend.contract import CONTRACTS, FREE_AXES, model_sizes
from oasr_backend.errors import ConfigError
from oasr_backend.export.features import FbankGraph
from oasr_backend.export.graphs import ChunkGraph, OfflineGraph
from oasr_backend.files import write_whole
from oasr_backend.models.ctc import demo_model
from oasr_backend.plans.build import BuildOptions
from oasr_backend.plans.check import check_onnx
from oasr_backend.plans.fingerprint import (
    Fingerprint,
    as_text,
    check_fingerprint,
    fingerprint_path,
    plan_path,
    sha256,
)
from oasr_backend.plans.precision import in_precision
from oasr_backend.plans.profiles import ShapeRange, Sizing, profiles

BUNDLE = read_bundle(demo_model())
SIZING = Sizing(rungs=(1, 4), buckets_s=(2.0, 8.0), chunk_size=16, max_entries=4)


@pytest.mark.parametrize(
    ("name", "graph"),
    [(FEATURES_FILE, FbankGraph), (ENCODER_FILE, OfflineGraph), (CHUNK_FILE, ChunkGraph)],
)
def test_the_contract_names_what_the_export_names(name, graph):
    for axes, tensors in (
        (graph.inputs, CONTRACTS[name].inputs),
        (graph.outputs, CONTRACTS[name].outputs),
    ):
        free = {
            tensor: tuple(axis if axis in FREE_AXES else None for axis in contract.axes)
            for tensor, contract in tensors.items()
        }
        assert free == dict(axes)


class TestProfiles:
    def test_a_rung_has_one_over_all_durations(self):
        assert profiles(ENCODER_FILE, BUNDLE, SIZING) == [
            {
                "features": ShapeRange((rung, 200, 80), (rung, 800, 80), (rung, 800, 80)),
                "feature_lengths": ShapeRange((rung,), (rung,), (rung,)),
            }
            for rung in (1, 4)
        ]

    def test_features_take_one_frame_to_the_longest_bucket(self):
        [one, _] = profiles(FEATURES_FILE, BUNDLE, SIZING)
        assert one == {"samples": ShapeRange((1, 400), (1, 799 * 160 + 400), (1, 799 * 160 + 400))}

    def test_chunks_have_one_length_and_any_number_of_blocks(self):
        [_, four] = profiles(CHUNK_FILE, BUNDLE, SIZING)
        streaming = BUNDLE.streaming
        assert four["features"] == ShapeRange((4, 67, 80), (4, 67, 80), (4, 67, 80))
        assert four["block_table"] == ShapeRange((4, 1), (4, 4), (4, 4))
        planes, width = streaming.num_planes, streaming.plane_width
        assert four["pool"] == ShapeRange(
            (1, planes, 16, width), (16, planes, 16, width), (65536, planes, 16, width)
        )
        context = (4, streaming.conv_layers, streaming.conv_frames, streaming.conv_size)
        assert four["conv_cache"] == ShapeRange(context, context, context)

    @pytest.mark.parametrize("rungs", [(), (0, 1), (2, 1), (1, 1)])
    def test_a_ladder_ascends_from_1(self, rungs):
        with pytest.raises(ConfigError) as caught:
            Sizing(rungs=rungs)
        assert str(caught.value) == (
            f"rungs is {list(rungs)}; it must be numbers above 0, each larger than the one before: correct it"
        )

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("buckets_s", (float("nan"),)),
            ("buckets_s", (float("inf"),)),
            ("buckets_s", (1e30,)),
            ("rungs", (99999999999,)),
            ("chunk_size", 0),
            ("chunk_size", 99999999999),
            ("max_entries", -99),
            ("max_entries", 99999999999),
        ],
    )
    def test_sizes_that_no_card_has_are_refused(self, field, value):
        with pytest.raises(ConfigError, match=f"{field} is "):
            Sizing(**{field: value})

    def test_a_bucket_too_short_for_an_encoder_frame_is_refused(self):
        with pytest.raises(ConfigError) as caught:
            profiles(ENCODER_FILE, BUNDLE, replace(SIZING, buckets_s=(0.05, 1.0)))
        assert str(caught.value) == (
            "buckets_s begins with 0.05; an encoder frame needs 0.07 s: raise it"
        )


class TestContract:
    def check(self, path):
        check_onnx(path, CONTRACTS[ENCODER_FILE], model_sizes(BUNDLE))

    def changed(self, tmp_path, change):
        model = onnx.load(str(demo_model() / ENCODER_FILE))
        change(model)
        path = tmp_path / ENCODER_FILE
        path.write_bytes(model.SerializeToString())
        return path

    @pytest.mark.parametrize("name", list(CONTRACTS))
    def test_the_demo_model_keeps_it(self, name):
        check_onnx(demo_model() / name, CONTRACTS[name], model_sizes(BUNDLE))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                lambda m: setattr(m.opset_import[0], "version", 9),
                "has opset 9; it must be 17 to 20",
            ),
            (
                lambda m: setattr(m.graph.input[0], "name", "speech"),
                (
                    "has the inputs speech, feature_lengths, chunk_size, num_left_chunks; they must be features, "
                    "feature_lengths, chunk_size, num_left_chunks"
                ),
            ),
            (
                lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[2], "dim_value", 40),
                "features is float ['batch', 'frames', 40]; it must be float32 ['batch', 'frames', 80]",
            ),
            (
                lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1),
                "features is float [1, 'frames', 80]; it must be float32 ['batch', 'frames', 80]",
            ),
            (
                lambda m: setattr(m.graph.input[1].type.tensor_type, "elem_type", 6),
                "feature_lengths is int32 ['batch']; it must be int64 ['batch']",
            ),
        ],
    )
    def test_what_breaks_it_is_named(self, tmp_path, change, text):
        path = self.changed(tmp_path, change)
        with pytest.raises(ConfigError) as caught:
            self.check(path)
        assert str(caught.value).endswith(
            f"{text}: export the bundle again with scripts/export_wenet.py"
        )
        assert str(caught.value).startswith(str(path))

    def test_no_onnx_is_named(self, tmp_path):
        path = tmp_path / ENCODER_FILE
        path.write_bytes(b"no graph")
        with pytest.raises(ConfigError, match=r"encoder\.onnx cannot be read as ONNX"):
            self.check(path)


class TestFingerprint:
    FOUND = Fingerprint(
        "tensorrt", "10.13.0", ("8.6", "8.9"), "00ff", {"precision": "fp16", "rungs": (1, 4)}
    )

    def plan(self, tmp_path):
        plan = plan_path(tmp_path / ENCODER_FILE, "tensorrt")
        write_whole(plan, b"plan")
        write_whole(fingerprint_path(plan), as_text(self.FOUND, sha256(plan)).encode())
        return plan

    def test_a_plan_for_this_card_fits(self, tmp_path):
        plan = self.plan(tmp_path)
        assert plan.name == "encoder.tensorrt.plan"
        check_fingerprint(plan, replace(self.FOUND, compute_capabilities=("8.9",)), "build")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"version": "10.14.1"}, "version 10.13.0, not 10.14.1"),
            ({"compute_capabilities": ("9.0",)}, "compute_capabilities 8.6 and 8.9, not 9.0"),
            ({"onnx_sha256": "0100"}, "onnx_sha256 00ff, not 0100"),
            (
                {"options": {"precision": "bf16", "rungs": (1, 4)}},
                'options {"precision": "fp16", "rungs": [1, 4]}, not {"precision": "bf16", "rungs": [1, 4]}',
            ),
            (
                {"flavour": "tensorrt_rtx", "version": "1.7"},
                "flavour tensorrt, not tensorrt_rtx; version 10.13.0, not 1.7",
            ),
        ],
    )
    def test_one_that_does_not_names_both_sides_and_the_remedy(self, tmp_path, change, text):
        plan = self.plan(tmp_path)
        with pytest.raises(ConfigError) as caught:
            check_fingerprint(plan, replace(self.FOUND, **change), "scripts/build_tensorrt.py X")
        assert str(caught.value) == (
            f"{plan} was built for {text}: build it again: scripts/build_tensorrt.py X"
        )

    def test_a_plan_or_a_fingerprint_that_is_missing_is_named(self, tmp_path):
        plan = self.plan(tmp_path)
        fingerprint_path(plan).unlink()
        with pytest.raises(ConfigError) as caught:
            check_fingerprint(plan, self.FOUND, "build")
        assert str(caught.value) == f"{fingerprint_path(plan)} is missing: build it: build"
        plan.unlink()
        with pytest.raises(ConfigError) as caught:
            check_fingerprint(plan, self.FOUND, "build")
        assert str(caught.value) == f"{plan} is missing: build it: build"

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"compute_capabilities": 1}'])
    def test_no_fingerprint_is_named(self, tmp_path, text):
        plan = self.plan(tmp_path)
        fingerprint_path(plan).write_text(text)
        with pytest.raises(ConfigError, match="holds no fingerprint"):
            check_fingerprint(plan, self.FOUND, "build")

    @pytest.mark.parametrize(
        "change",
        [
            {"compute_capabilities": [1]},
            {"compute_capabilities": [["8.9"]]},
            {"options": 5},
            {"version": None},
            {"plan_sha256": 1},
        ],
    )
    def test_a_fingerprint_of_other_types_is_none(self, tmp_path, change):
        plan = self.plan(tmp_path)
        path = fingerprint_path(plan)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(ConfigError, match="holds no fingerprint"):
            check_fingerprint(plan, self.FOUND, "build")

    @pytest.mark.parametrize("content", [b"", b"pla", b"another plan"])
    def test_a_plan_that_was_damaged_or_is_another_one_is_named(self, tmp_path, content):
        plan = self.plan(tmp_path)
        plan.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            check_fingerprint(plan, self.FOUND, "build")
        assert str(caught.value) == (
            f"{plan} is not the plan that {plan.name}.json is of, or was damaged: build it again: build"
        )

    def test_a_hash_is_the_file_s(self, tmp_path):
        (tmp_path / "a").write_bytes(b"abc")
        assert sha256(tmp_path / "a").startswith("ba7816bf")

    def test_features_are_made_in_fp32(self):
        options = BuildOptions(precision="fp16", sizing=SIZING)
        assert options.plan_options(FEATURES_FILE)["precision"] == "fp32"
        assert options.plan_options(CHUNK_FILE) == {
            "precision": "fp16",
            "rungs": (1, 4),
            "buckets_s": (2.0, 8.0),
            "chunk_size": 16,
            "max_entries": 4,
        }


class TestPrecision:
    INPUTS: ClassVar = {
        "features": np.random.default_rng(0).normal(10, 3, (2, 203, 80)).astype(np.float32),
        "feature_lengths": np.array([203, 131]),
        "chunk_size": np.array(0),
        "num_left_chunks": np.array(-1),
    }

    def log_probs(self, precision):
        model = in_precision(onnx.load(str(demo_model() / ENCODER_FILE)), precision)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(["log_probs"], self.INPUTS)[0]

    def test_half_precision_stays_near(self):
        wide, narrow = self.log_probs("fp32"), self.log_probs("fp16")
        assert narrow.dtype == np.float32
        for row, length in enumerate((49, 31)):
            assert np.abs(np.exp(wide) - np.exp(narrow))[row, :length].max() < 0.05

    def test_caches_are_as_narrow_as_the_weights(self):
        for precision, wanted in (("fp16", 10), ("bf16", 16)):
            model = in_precision(onnx.load(str(demo_model() / CHUNK_FILE)), precision)
            types = {
                value.name: value.type.tensor_type.elem_type
                for value in (*model.graph.input, *model.graph.output)
            }
            assert types["features"] == types["log_probs"] == onnx.TensorProto.FLOAT
            caches = {types[name] for name in ("pool", "conv_cache", "new_kv", "new_conv_cache")}
            assert caches == {wanted}
            kinds = {tensor.data_type for tensor in model.graph.initializer}
            assert onnx.TensorProto.FLOAT not in kinds or precision == "fp16"

    def test_bfloat16_rounds_to_the_nearest(self):
        model = in_precision(onnx.load(str(demo_model() / ENCODER_FILE)), "bf16")
        wide = onnx.load(str(demo_model() / ENCODER_FILE))
        theirs = {each.name: onnx.numpy_helper.to_array(each) for each in wide.graph.initializer}
        checked = 0
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.BFLOAT16 and theirs[tensor.name].size > 100:
                bits = np.frombuffer(tensor.raw_data, np.uint16).astype(np.uint32) << 16
                ours = bits.view(np.float32).reshape(theirs[tensor.name].shape)
                near = (
                    np.abs(ours - theirs[tensor.name]) <= 0.006 * np.abs(theirs[tensor.name]) + 1e-6
                )
                assert near.all()
                checked += 1
        assert checked > 20
