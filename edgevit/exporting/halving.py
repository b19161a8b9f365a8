"""Convert an ONNX graph to fp16, except for some modules in fp32: round weights, and cast between the two types.

ONNX Runtime's converter is not used: it casts values between two nodes in fp32 to fp16 and back, which overflows where
fp32 is to prevent it, and gives two casts of one value the same name. AutoCast of nvidia-modelopt is not used: it names
casts by tensor, not by module, changes the operator set, and needs onnx-graphsurgeon for a file instead of a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from edgevit.errors import ExportError
from edgevit.records.precisions import FP16, precision_of

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_ALWAYS_FLOAT = {"Resize": (1, 2)}  # inputs that ONNX defines in fp32 only
_OF_ANY_TYPE = ("Shape", "Size")
_OWN_GRAPHS = ("If", "Loop", "Scan")

_IslandOf = Callable[[ir.Node], "str | None"]  # the fp32 module of a node; None: the node becomes fp16


def convert(graph: ir.Graph, precision: str, fp32_modules: Collection[str] = ()) -> None:
    """Convert a graph in fp32 to another precision, in place, except for the nodes of these modules.

    Raises:
        ExportError: as by `halve`.
    """
    if precision_of(precision) is FP16:
        halve(graph, fp32_modules)


def halve(graph: ir.Graph, fp32_modules: Collection[str] = ()) -> None:
    """Convert a graph in fp32 to fp16, in place: images, weights, logits and all nodes except the islands.

    Islands are the nodes of the named modules: blocks, or normalisations outside of these. They must not be parts of an
    attention, whose products and softmax fuse only in one precision.

    Raises:
        ExportError: it has nodes with inner graphs, or values of unknown type.
    """
    island_of = _island_finder(fp32_modules)
    _check_convertible(graph)
    types = _types(graph, island_of)
    casts = _Casts(graph, types)
    for value in [*graph.initializers.values()]:
        if value.dtype == FLOAT:
            _halve_weight(graph, value, island_of)
    for node in [*graph]:
        for i, value in enumerate(node.inputs):
            dtype = _input_type(node, i, island_of)
            if value in types and types[value] != dtype and node.op_type not in _OF_ANY_TYPE:
                island = island_of(node) or island_of(value.producer() or node) or node.name.partition("/")[0]
                node.replace_input_with(i, casts.of(value, dtype, before=node, island=island))
        if island_of(node) is None:
            _halve_attributes(node)
    for i, value in enumerate(graph.outputs):
        if types.get(value) == FLOAT:
            _cast_output(graph, i, casts, island_of)
    for value, kind in types.items():
        value.type = ir.TensorType(kind)  # a new object, as clones of a graph share types


def _island_finder(modules: Collection[str]) -> _IslandOf:
    """Return a function that finds the module of a node among these."""

    def island_of(node: ir.Node) -> str | None:
        name = (node.name or "").partition("/")[0]
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    return island_of


def _check_convertible(graph: ir.Graph) -> None:
    for node in graph:
        if node.op_type in _OWN_GRAPHS:
            raise ExportError(
                f"{node.name} has an inner graph, which cannot be converted to fp16; export the model without it, or "
                "try --no-fp16"
            )
        if any(value.dtype is None for value in node.outputs):
            raise ExportError(f"the type of the output of {node.name} is unknown; try --no-fp16")


def _types(graph: ir.Graph, island_of: _IslandOf) -> dict[ir.Value, ir.DataType]:
    """The future type of each value in floating point."""
    types = {v: FLOAT if island_of(node) else HALF for node in graph for v in node.outputs if v.dtype == FLOAT}
    return {**{value: HALF for value in graph.inputs if value.dtype == FLOAT}, **types}


def _input_type(node: ir.Node, index: int, island_of: _IslandOf) -> ir.DataType:
    return FLOAT if island_of(node) or index in _ALWAYS_FLOAT.get(node.op_type, ()) else HALF


def _rounded(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    values = tensor.numpy()
    half = values.astype(np.float16)
    if values.size == 1 and values.all() and not half.any():  # such as 1e-12, which prevents a division by 0
        half = np.copysign(np.finfo(np.float16).smallest_subnormal, half)
    return ir.Tensor(half, name=name)


def _halve_weight(graph: ir.Graph, value: ir.Value, island_of: _IslandOf) -> None:
    """Round a weight; islands that use it keep the original."""
    rounded = [use for use in value.uses() if _input_type(use.node, use.idx, island_of) == HALF]
    assert value.const_value is not None and value.name is not None
    if not rounded:
        return
    if len(rounded) == len(value.uses()):
        value.const_value, value.type = _rounded(value.const_value, value.name), ir.TensorType(HALF)
        return
    name = f"{value.name}.fp16"
    tensor = _rounded(value.const_value, name)
    half = ir.Value(name=name, shape=value.shape, type=ir.TensorType(HALF), const_value=tensor)
    graph.initializers[name] = half
    for use in rounded:
        use.node.replace_input_with(use.idx, half)


def _halve_attributes(node: ir.Node) -> None:
    """Convert the types and constants in the attributes of a node."""
    if node.op_type == "Cast" and node.attributes["to"].as_int() == FLOAT:
        node.attributes["to"] = ir.AttrInt64("to", HALF)
    for name, attribute in [*node.attributes.items()]:
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == FLOAT:
            node.attributes[name] = ir.AttrTensor(name, _rounded(attribute.as_tensor(), None))


class _Casts:
    """The casts of a graph: each value at most once to each type."""

    def __init__(self, graph: ir.Graph, types: dict[ir.Value, ir.DataType]) -> None:
        self.graph, self.types = graph, types
        self.outputs: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.counts = Counter[str]()

    def of(self, value: ir.Value, kind: ir.DataType, *, before: ir.Node | None, island: str) -> ir.Value:
        if (value, kind) not in self.outputs:
            name = f"{island}/Cast"
            number, self.counts[name] = self.counts[name], self.counts[name] + 1
            node = ir.node("Cast", [value], attributes={"to": kind}, name=f"{name}_{number}" if number else name)
            output = node.outputs[0]
            output.name, output.shape, output.type = (
                f"{value.name}.{kind.name.lower()}",
                value.shape,
                ir.TensorType(kind),
            )
            if before is None:
                self.graph.append(node)
            else:  # before all other uses, as the graph is in topological order
                self.graph.insert_before(before, node)
            self.outputs[value, kind] = output
        return self.outputs[value, kind]


def _cast_output(graph: ir.Graph, index: int, casts: _Casts, island_of: _IslandOf) -> None:
    """Cast an output; the cast takes its name, which applications use."""
    value = graph.outputs[index]
    producer, name = value.producer(), value.name
    assert producer is not None
    output = casts.of(value, HALF, before=None, island=island_of(producer) or "head")
    value.name, output.name = f"{name}.float", name
    graph.outputs[index] = output
