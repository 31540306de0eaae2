"""Whether an ONNX file is what its contract says, asked before a build of minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from oasr_backend.contract import FREE_AXES, GraphContract, Tensors
from oasr_backend.errors import ConfigError

MIN_OPSET, MAX_OPSET = 17, 20
"""From the first with LayerNormalization to the last that the parser of TensorRT 10.0 knows."""

REMEDY = "export the bundle again with scripts/export_wenet.py"
DTYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}


def check_onnx(path: Path, contract: GraphContract, sizes: Mapping[str, int]) -> None:
    """Raise ConfigError unless a file's opset, names, element types and shapes are those of its contract.

    sizes: of the axes that are not free, by name (see `model_sizes`).
    """
    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise ConfigError(f"{path} cannot be read as ONNX ({error!r}): {REMEDY}") from error
    opset = next((each.version for each in model.opset_import if not each.domain), 0)
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise ConfigError(
            f"{path} has opset {opset}; it must be {MIN_OPSET} to {MAX_OPSET}: {REMEDY}"
        )
    initializers = {each.name for each in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    _check_side(path, "inputs", inputs, contract.inputs, sizes)
    _check_side(path, "outputs", list(model.graph.output), contract.outputs, sizes)


def _check_side(
    path: Path,
    side: str,
    found: list[onnx.ValueInfoProto],
    wanted: Tensors,
    sizes: Mapping[str, int],
) -> None:
    names = [value.name for value in found]
    if names != list(wanted):
        raise ConfigError(
            f"{path} has the {side} {', '.join(names)}; they must be {', '.join(wanted)}: {REMEDY}"
        )
    for value in found:
        tensor, kind = wanted[value.name], value.type.tensor_type
        axes = [_size(axis, sizes) for axis in tensor.axes]
        shape = [each.dim_value or each.dim_param for each in kind.shape.dim]
        is_same = len(axes) == len(shape) and all(map(_fits, shape, axes))
        if kind.elem_type != DTYPES[tensor.dtype] or not is_same:
            dtype = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
            raise ConfigError(
                f"{path}: {value.name} is {dtype} {shape}; it must be {tensor.dtype} {axes}: {REMEDY}"
            )


def _size(axis: str, sizes: Mapping[str, int]) -> str | int:
    return axis if axis in FREE_AXES else sizes[axis]


def _fits(found: str | int, wanted: str | int) -> bool:
    """Tell whether an axis is free where it should be, and as large as it should be where not."""
    return isinstance(found, str) if isinstance(wanted, str) else found == wanted
