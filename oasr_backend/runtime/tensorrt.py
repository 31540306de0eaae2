"""A bundle's graphs as TensorRT plans, which scripts/build_tensorrt.py has built."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, Bundle
from oasr_backend.errors import ConfigError, ServerError
from oasr_backend.plans.fingerprint import plan_path
from oasr_backend.plans.library import load_flavour
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.cuda import CudaDevice
from oasr_backend.runtime.graphed import Computations, GraphedRuntime
from oasr_backend.runtime.graphs import Buffer, Key, Spec
from oasr_backend.runtime.shapes import GraphShapes

if TYPE_CHECKING:
    import tensorrt as trt

log = logging.getLogger(__name__)

CACHE_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class PlanComputation:
    """A plan, with an execution context for each shape: a captured graph holds on to the one it was captured in."""

    def __init__(
        self, engine: trt.ICudaEngine, shapes: GraphShapes, rungs: Sequence[int], stream: int
    ) -> None:
        """stream: the handle of the CUDA stream that everything runs on."""
        self._engine, self._shapes, self._stream = engine, shapes, stream
        self._profiles = {rung: index for index, rung in enumerate(rungs)}
        self._contexts: dict[Key, trt.IExecutionContext] = {}

    def inputs(self, key: Key) -> Mapping[str, Spec]:
        return self._shapes.inputs(key)

    def outputs(self, key: Key) -> Mapping[str, Spec]:
        return self._shapes.outputs(key)

    def launch(self, key: Key, buffers: Mapping[str, Buffer]) -> None:
        contract = self._shapes.contract
        context = self._contexts.get(key) or self._new_context(key, buffers)
        for name in (*contract.inputs, *contract.outputs):
            context.set_tensor_address(name, buffers[name].data_ptr())
        if not context.execute_async_v3(self._stream):
            raise ServerError(
                f"TensorRT could not run a batch of shape {key}: see the server's log"
            )

    def _new_context(self, key: Key, buffers: Mapping[str, Buffer]) -> trt.IExecutionContext:
        if key[0] not in self._profiles:
            raise ServerError(
                f"the plan has no profile for batches of {key[0]} rows, only of {sorted(self._profiles)}: build it for "
                "the ladder"
            )
        context = self._engine.create_execution_context()
        context.set_optimization_profile_async(self._profiles[key[0]], self._stream)
        for name in self._shapes.contract.inputs:
            if not context.set_input_shape(name, tuple(buffers[name].shape)):
                raise ServerError(
                    f"the plan does not take {name} of shape {tuple(buffers[name].shape)}: build it for such durations"
                )
        self._contexts[key] = context
        return context


def tensorrt_runtime(
    plans: Path,
    options: Mapping[str, Mapping[str, Any]],
    bundle: Bundle,
    flavour: str,
    device: CudaDevice,
    feature_rungs: Sequence[int] = (),
) -> GraphedRuntime:
    """Return a runtime of a bundle's plans in the folder `plans`; ConfigError where one cannot be loaded.

    options: what each plan was built with, as `check_plans` gives it; rungs and duration buckets are of them.
    """
    library = load_flavour(flavour)
    sizing = Sizing.from_dict(options[ENCODER_FILE])
    logger = library.Logger(library.Logger.WARNING)
    loader: trt.Runtime = library.Runtime(logger)

    def computation(name: str) -> PlanComputation:
        path = plan_path(plans / name, flavour)
        engine = loader.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise ConfigError(f"{path} cannot be loaded: build it again (docs/tensorrt.md)")
        dtype = CACHE_DTYPES[options[name]["precision"]]
        shapes = GraphShapes(name, bundle, sizing, dtype)
        return PlanComputation(engine, shapes, sizing.rungs, device.stream.cuda_stream)

    chunk = computation(CHUNK_FILE) if bundle.streaming is not None else None
    computations = Computations(computation(FEATURES_FILE), computation(ENCODER_FILE), chunk)
    return GraphedRuntime(device, computations, bundle, sizing, feature_rungs)
