"""A graph in half precision: what TensorRT then builds has the types that the file says.

What comes from outside and goes there stays float32; what is cached of a stream becomes as narrow as the weights, so
that no pass over the whole cache converts it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

WIDE = ("features", "log_probs")
"""Inputs and outputs that stay float32."""


def in_precision(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """Return a graph that computes in "fp32", "fp16" or "bf16"; the model handed in may be changed."""
    if precision == "fp32":
        return model
    narrow = convert_float_to_float16(model, keep_io_types=list(WIDE), disable_shape_infer=True)
    return _widened_exponents(narrow) if precision == "bf16" else narrow


def _widened_exponents(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn every float16 of a graph into bfloat16."""
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for tensor in graph.initializer:
        _convert(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _convert(attribute.t)
            elif attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
    return model


def _convert(tensor: Any) -> None:
    if tensor.data_type != TensorProto.FLOAT16:
        return
    wide = np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
    # The upper half of a float32, rounded to the nearest even, is the bfloat16.
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, TensorProto.BFLOAT16
    tensor.dims.extend(dims)
    tensor.raw_data = rounded.astype(np.uint16).tobytes()
