"""Writing a graph as an ONNX file whose bytes depend on nothing but the weights, and checking it against PyTorch.

It knows what a graph is called and what its axes are, not what it computes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from oasr_backend.export.graphs import Axes, Graph

OPSET = 18
TOLERANCE = 1e-4
"""Largest difference to PyTorch, in log-probabilities and in what is cached."""


class ExportError(Exception):
    """The exported graph does not compute what the model does."""


def export_graph(graph: Graph, example: Mapping[str, Tensor], path: Path) -> None:
    """Write a graph, called with the tensors of `example` in their order, as one ONNX file."""
    dynamic = [
        {index: torch.export.Dim.DYNAMIC for index, name in enumerate(graph.inputs[key]) if name}
        for key in example
    ]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.eval(),
            tuple(example.values()),
            dynamo=True,
            dynamic_shapes=tuple(dynamic),
            input_names=list(example),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _forget_origin(model)
    _name_axes(model, {**graph.inputs, **graph.outputs})
    path.write_bytes(model.SerializeToString(deterministic=True))


def check_graph(
    graph: Graph, path: Path, cases: Sequence[Mapping[str, Tensor]], tolerance: float = TOLERANCE
) -> float:
    """Run ONNX Runtime beside PyTorch; return the largest difference. Raises ExportError above `tolerance`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for case in cases:
        with torch.no_grad():
            expected = graph(*case.values())
        if isinstance(expected, Tensor):
            expected = (expected,)
        outputs = session.run(None, {name: value.numpy() for name, value in case.items()})
        for name, ours, theirs in zip(graph.outputs, outputs, expected, strict=True):
            worst = max(worst, _difference(name, ours, theirs.numpy(), path, tolerance))
    return worst


def set_metadata(path: Path, metadata: Mapping[str, object]) -> None:
    """Write named values into a file, for an engine that looks for them there."""
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
    path.write_bytes(model.SerializeToString(deterministic=True))


def _difference(name: str, ours: Any, theirs: Any, path: Path, tolerance: float) -> float:
    difference = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else np.inf
    if not difference <= tolerance:
        raise ExportError(
            f"{path.name} gives {name} {ours.shape} that differs from PyTorch's {theirs.shape} by {difference:.2e}; "
            f"the limit is {tolerance:.0e}: do not use this export, and report the checkpoint's train.yaml"
        )
    return difference


def _forget_origin(model: onnx.ModelProto) -> None:
    """Drop what PyTorch notes about where each node came from: paths of this machine among it."""
    del model.metadata_props[:]
    model.producer_version = ""
    model.graph.doc_string = ""
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
        value.doc_string = ""
    assert not model.functions


def _name_axes(model: onnx.ModelProto, axes: Axes) -> None:
    for value in (*model.graph.input, *model.graph.output):
        names = axes[value.name]
        for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if name:
                axis.dim_param = name


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch's exporter from writing about missing torchvision and folded constants."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
