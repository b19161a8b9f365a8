"""Count the multiply-accumulates and the parameters of an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgevit.errors import CheckpointError
from edgevit.exporting.graph import INPUT
from edgevit.exporting.halving import FLOAT, HALF
from edgevit.exporting.session import DTYPES, open_session, runtime_boundary

_WEIGHTS = (FLOAT, HALF, ir.DataType.INT8)
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum")
_Shape = tuple[int, ...]


def count_macs(path: Path, images: Any) -> int:
    """The MACs of one image: of convolutions and products, by their shapes in a run on some images [B, 3, H, W].

    Raises:
        CheckpointError: ONNX Runtime cannot run the file.
    """
    model = ir.load(path)
    products = [node for node in model.graph if node.op_type in _PRODUCTS]
    shapes = _shapes(model, path, images, [v for node in products for v in (*node.inputs[:2], node.outputs[0])])
    return sum(_macs(node, next(shapes), next(shapes), next(shapes)) for node in products) // len(images)


def _shapes(model: ir.Model, path: Path, images: Any, values: list[ir.Value | None]) -> Iterator[_Shape]:
    """The shapes of values of the graph in a run."""
    nodes = [ir.node("Shape", [value]) for value in values]
    model.graph.outputs.clear()
    for i, node in enumerate(nodes):
        node.outputs[0].name, node.outputs[0].type = f"{INPUT}.shape.{i}", ir.TensorType(ir.DataType.INT64)
        model.graph.outputs.append(node.outputs[0])
    model.graph.extend(nodes)
    if not nodes:
        return
    content = ir.to_proto(model).SerializeToString()
    with runtime_boundary(path, CheckpointError):
        session = open_session(content)
        (first, *_) = session.get_inputs()
        shapes = session.run(None, {first.name: images.astype(DTYPES[first.type])})
    yield from (tuple(map(int, shape)) for shape in shapes)


def _macs(node: ir.Node, first: _Shape, second: _Shape, out: _Shape) -> int:
    """The MACs of a node by the shapes of its first two inputs and of its output."""
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "Conv":
        summed = second[1:]
    elif node.op_type == "Einsum":
        inputs, _, output = node.attributes["equation"].as_string().replace(" ", "").replace("...", "").partition("->")
        sizes = zip(reversed(inputs.partition(",")[0]), reversed(first), strict=False)
        summed = tuple(size for letter, size in sizes if letter not in output)
    else:
        transposed = "transA" in node.attributes and node.attributes["transA"].as_int()
        summed = first[-2:-1] if transposed else first[-1:]
    return math.prod(out) * math.prod(summed)


def count_params(path: Path) -> int:
    """The number of constants in floating point or INT8: the parameters, where constants are folded."""
    values = ir.load(path).graph.initializers.values()
    return sum(value.const_value.size for value in values
               if value.dtype in _WEIGHTS and value.const_value is not None)  # fmt: skip
