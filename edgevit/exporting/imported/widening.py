"""Convert an ONNX graph in bfloat16, which ONNX Runtime does not run on a CPU, to fp32 with bit-identical weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

_FLOAT = onnx.TensorProto.FLOAT
_BFLOAT16 = onnx.TensorProto.BFLOAT16
_TYPED = ("to", "dtype")  # attributes with a type


def widen(model: onnx.ModelProto) -> bool:
    """Convert bfloat16 to float32, in place; return whether there was any."""
    nodes = [*_nodes(model.graph.node), *(node for function in model.functions for node in _nodes(function.node))]
    attributes = [attribute for node in nodes for attribute in node.attribute]
    graphs = [model.graph, *(graph for attribute in attributes for graph in (attribute.g, *attribute.graphs))]
    values = [value for graph in graphs for value in (*graph.input, *graph.output, *graph.value_info)]
    types = [kind for value in values if (kind := value.type.tensor_type).elem_type == _BFLOAT16]
    casts = [attribute for attribute in attributes if attribute.name in _TYPED and attribute.i == _BFLOAT16]
    tensors = [weight for graph in graphs for weight in graph.initializer]
    tensors += [attribute.t for attribute in attributes if attribute.type == onnx.AttributeProto.TENSOR]
    tensors = [tensor for tensor in tensors if tensor.data_type == _BFLOAT16]
    for kind in types:
        kind.elem_type = _FLOAT
    for attribute in casts:
        attribute.i = _FLOAT
    for tensor in tensors:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return bool(types or casts or tensors)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes, and those of the graphs in them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)
