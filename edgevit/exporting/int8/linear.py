"""The linear layers of an ONNX graph: products of computed values with a constant matrix."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

LINEAR = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Linear:
    """A linear layer: y = x W + b. Shapes: W [in, out], b [out]."""

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None  # constant of the bias; None: the layer has none, or shares it with other nodes
    transposed: bool  # whether the file has W as [out, in]

    @property
    def name(self) -> str:
        return self.node.name or ""

    @property
    def input(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    def read(self) -> Tensor:
        """The weight [in, out]."""
        weight = read_constant(self.weight)
        return weight.mT if self.transposed else weight

    def write(self, weight: Tensor) -> None:
        write_constant(self.weight, weight.mT if self.transposed else weight)


def read_constant(value: ir.Value) -> Tensor:
    """A copy of a constant."""
    assert value.const_value is not None
    return torch.from_numpy(value.const_value.numpy().copy())


def write_constant(value: ir.Value, constant: Tensor) -> None:
    value.const_value = ir.Tensor(constant.float().contiguous().numpy(), name=value.name)


def is_own(value: ir.Value | None, dimensions: int) -> bool:
    """Whether a value is a constant of so many dimensions that only one node uses."""
    return (
        value is not None
        and value.is_initializer()
        and value.const_value is not None
        and len(value.const_value.shape) == dimensions
        and len(value.uses()) == 1
    )


def find_linear(graph: ir.Graph) -> list[Linear]:
    """The linear layers, in order; without those that share their matrix, or scale it."""
    layers = []
    for node in graph:
        if node.op_type not in LINEAR or not is_own(node.inputs[1], 2):
            continue
        weight = node.inputs[1]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        transposed = bool(attributes.pop("transB", 0))
        if any(attributes.pop(name, plain) != plain for name, plain in (("alpha", 1), ("beta", 1), ("transA", 0))):
            continue
        assert weight is not None and weight.const_value is not None
        outputs = weight.const_value.shape[0 if transposed else 1]
        bias = node.inputs[2] if len(node.inputs) > 2 else _added(node)
        added = bias if is_own(bias, 1) and bias is not None and read_constant(bias).numel() == outputs else None
        layers.append(Linear(node, weight, added, transposed))
    return layers


def _added(node: ir.Node) -> ir.Value | None:
    """The constant that the only user of a product adds to it."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    return uses[0].node.inputs[1 - uses[0].idx]
