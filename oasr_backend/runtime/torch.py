"""A bundle's graphs through PyTorch: the second way on a GPU, and the one that TensorRT's is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, Bundle
from oasr_backend.export.features import FbankGraph
from oasr_backend.export.graphs import ChunkGraph, Graph, OfflineGraph
from oasr_backend.export.wenet import load_checkpoint
from oasr_backend.plans.profiles import Sizing
from oasr_backend.runtime.graphed import Computations, GraphedRuntime
from oasr_backend.runtime.graphs import Buffer, Device, Key, Spec
from oasr_backend.runtime.shapes import GraphShapes


class ModuleComputation:
    """A module with named inputs and outputs."""

    def __init__(self, graph: Graph, shapes: GraphShapes) -> None:
        self._graph, self._shapes = graph.eval(), shapes

    def inputs(self, key: Key) -> Mapping[str, Spec]:
        return self._shapes.inputs(key)

    def outputs(self, key: Key) -> Mapping[str, Spec]:
        return self._shapes.outputs(key)

    def launch(self, _key: Key, buffers: Mapping[str, Buffer]) -> None:
        with torch.no_grad():
            results = self._graph(*(buffers[name] for name in self._shapes.contract.inputs))
        results = (results,) if isinstance(results, torch.Tensor) else results
        for name, result in zip(self._shapes.contract.outputs, results, strict=True):
            buffers[name].copy_(result)


def torch_runtime(
    checkpoint_folder: Path,
    bundle: Bundle,
    sizing: Sizing,
    device: Device,
    place: torch.device,
    feature_rungs: Sequence[int] = (),
) -> GraphedRuntime:
    """Return a runtime of the WeNet checkpoint that a bundle was exported from, its weights on `place`."""
    model = load_checkpoint(checkpoint_folder).model

    def computation(name: str, graph: Graph) -> ModuleComputation:
        return ModuleComputation(graph.to(place), GraphShapes(name, bundle, sizing))

    chunk = computation(CHUNK_FILE, ChunkGraph(model)) if bundle.streaming else None
    computations = Computations(
        computation(FEATURES_FILE, FbankGraph(bundle.features.num_mels)),
        computation(ENCODER_FILE, OfflineGraph(model)),
        chunk,
    )
    return GraphedRuntime(device, computations, bundle, sizing, feature_rungs)
