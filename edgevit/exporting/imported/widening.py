"""Convert an ONNX graph in bfloat16, which ONNX Runtime does not run on a CPU, to fp32 with bit-identical weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper

_FLOAT = onnx.TensorProto.FLOAT
_BFLOAT16 = onnx.TensorProto.BFLOAT16
_TYPED = ("to", "dtype")  # attributes with a type


def widen(model: onnx.ModelProto) -> bool:
    """Convert bfloat16 to float32, in place; return whether there was any."""
    changed = [_widen_graph(model.graph)]
    changed += [_widen_nodes(function.node) for function in model.functions]
    return any(changed)


def _widen_graph(graph: onnx.GraphProto) -> bool:
    changed = [_widen_tensor(weight) for weight in graph.initializer]
    for value in (*graph.input, *graph.output, *graph.value_info):
        half = value.type.tensor_type.elem_type == _BFLOAT16
        if half:
            value.type.tensor_type.elem_type = _FLOAT
        changed.append(half)
    return any([*changed, _widen_nodes(graph.node)])


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> bool:
    changed = False
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPED and attribute.i == _BFLOAT16:
                attribute.i = _FLOAT
                changed = True
            elif attribute.type == onnx.AttributeProto.TENSOR:
                changed |= _widen_tensor(attribute.t)
            for inner in (attribute.g, *attribute.graphs):
                changed |= _widen_graph(inner)
    return changed


def _widen_tensor(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != _BFLOAT16:
        return False
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return True
