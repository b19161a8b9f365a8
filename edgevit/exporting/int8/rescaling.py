"""Centre and scale the inputs of linear layers exactly, so that one step of INT8 fits all their channels.

For a layer y = x W + b, x' = (x - shift) / scale goes with W' = scale W and b' = b + shift W. A normalisation before
the layer takes both into its own constants, and so do the values of an attention, as the weights of a softmax sum to
one. After anything else, such as GELU, they are two elementwise operations more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.exporting.int8.calibrating import STEPS, Inputs
from edgevit.exporting.int8.linear import Linear, is_own, read_constant, write_constant

# Exponents to choose from, by which ranges of inputs and of weights enter a scale.
_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_HALF_ROUNDING = 2.0**-11  # the largest relative error of a number of fp16
WORTH = 0.5  # the largest share of the error that may be left where operations are inserted
# Operators that may be between V and its layer.
_PASSED = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather")


def rescale(model: ir.Model, layers: Sequence[Linear], inputs: dict[str, Inputs]) -> int:
    """Rescale the inputs of linear layers in place, and `inputs`, by their names; return how many layers changed."""
    by_input: dict[str, list[Linear]] = {}
    for layer in layers:
        by_input.setdefault(str(layer.input.name), []).append(layer)
    return sum(len(users) for name, users in by_input.items() if _rescale_input(model, layers, users, name, inputs))


def _rescale_input(
    model: ir.Model, layers: Sequence[Linear], users: Sequence[Linear], name: str, inputs: dict[str, Inputs]
) -> bool:
    weight = torch.cat([layer.read() for layer in users], 1)
    unshared = len(users[0].input.uses()) == len(users)
    source = _find_source(users[0].input, len(weight), layers) if unshared else None
    before = inputs[name]
    shift = torch.zeros_like(before.lowest)
    after, scale, remaining = _rescaled(before, weight, shift)
    if all(layer.bias is not None for layer in users) and (source is None or source.bias is not None):
        middle = (before.lowest + before.highest) / 2
        centred = _rescaled(before, weight, middle)
        if centred[-1] < remaining:
            shift, (after, scale, remaining) = middle, centred
    if not remaining < (WORTH if source is None else 1) * rounding_error(before, weight):
        return False
    for layer in users:
        if layer.bias is not None:
            write_constant(layer.bias, read_constant(layer.bias) + shift @ layer.read())
        layer.write(layer.read() * scale[:, None])
    if source is not None:
        source.rescale(shift, scale)
    else:
        del inputs[name]
        name = _insert(model, users, shift, scale)
    inputs[name] = after
    return True


def _rescaled(inputs: Inputs, weight: Tensor, shift: Tensor) -> tuple[Inputs, Tensor, float]:
    """Inputs with this shift and the best scale, that scale, and the error that is left, also of biases in fp16."""
    scale = choose_scale(inputs.rescaled(shift, torch.ones_like(shift)), weight)
    after = inputs.rescaled(shift, scale)
    of_biases = float(((shift @ weight) ** 2).sum()) * _HALF_ROUNDING**2 / 3
    return after, scale, rounding_error(after, weight * scale[:, None]) + of_biases


def rounding_error(inputs: Inputs, weight: Tensor) -> float:
    """The mean squared error of x W [.., out] if inputs and weight [in, out] are rounded to INT8, by uniform errors."""
    energy = float((inputs.squares / inputs.rows).sum())
    of_inputs = (inputs.peak / STEPS) ** 2 * float((weight**2).sum())
    of_weights = float((weight.abs().amax(0) ** 2).sum()) / STEPS**2 * energy
    return (of_inputs + of_weights) / 12


def choose_scale(inputs: Inputs, weight: Tensor) -> Tensor:
    """The scale [in] of inputs of the least error: a power of their range times one of their weights'.

    SmoothQuant has the exponents 0.5 and -0.5 for all layers (its alpha).
    """
    peaks, weights = torch.maximum(-inputs.lowest, inputs.highest), weight.abs().amax(1)
    used, none = (peaks > 0) & (weights > 0), torch.zeros_like(peaks)

    def scale(exponents: tuple[float, ...]) -> Tensor:
        logarithm = exponents[0] * peaks.log() - exponents[1] * weights.log()
        return torch.where(used, (logarithm - logarithm[used].mean()).exp(), 1.0)

    def error(exponents: tuple[float, ...]) -> float:
        candidate = scale(exponents)
        return rounding_error(inputs.rescaled(none, candidate), weight * candidate[:, None])

    return scale(min(product(_EXPONENTS, repeat=2), key=error)) if used.any() else torch.ones_like(peaks)


@dataclass(frozen=True)
class _Source:
    """The constants that make inputs of linear layers: of a normalisation, or of the layer of an attention's values."""

    weight: ir.Value
    bias: ir.Value | None
    transposed: bool = False

    def rescale(self, shift: Tensor, scale: Tensor) -> None:
        """Rescale the last outputs, as many as `scale` has."""
        outputs = slice(-len(scale), None)
        weight = read_constant(self.weight)
        (weight.mT if self.transposed else weight)[..., outputs] /= scale
        write_constant(self.weight, weight)
        if self.bias is not None:
            bias = read_constant(self.bias)
            bias[outputs] = (bias[outputs] - shift) / scale
            write_constant(self.bias, bias)


def _find_source(value: ir.Value, width: int, layers: Iterable[Linear]) -> _Source | None:
    """The constants that make these inputs; None: no constants of their own do."""
    maker = value.producer()
    if maker is not None and maker.op_type == "Gather":  # selects the class token
        tokens = maker.inputs[0]
        maker = tokens.producer() if tokens is not None and len(tokens.uses()) == 1 else None
    if maker is None or maker.op_type != "LayerNormalization":
        return _find_values(maker, width, layers)
    constants = maker.inputs[1:]
    if not all(is_own(constant, 1) for constant in constants) or constants[0] is None:
        return None
    return _Source(constants[0], constants[1] if len(constants) > 1 else None)


def _find_values(node: ir.Node | None, width: int, layers: Iterable[Linear]) -> _Source | None:
    """The layer that makes the values of an attention whose heads this node puts together; None: another node."""
    product = _back(node, "MatMul")
    if product is None or (softmax := _back_of(product.inputs[0], "Softmax")) is None or softmax is product:
        return None
    source = _back_of(product.inputs[1], "Add", "MatMul", "Gemm")
    if source is not None and source.op_type == "Add":
        makers = [value.producer() for value in source.inputs if value is not None]
        source = next((maker for maker in makers if maker is not None and maker.op_type == "MatMul"), None)
    layer = next((layer for layer in layers if layer.node is source), None)
    if layer is None or (layer.bias is None and _has_bias(layer)):
        return None
    if layer.read().shape[1] not in (width, 3 * width):  # values alone, or after queries and keys
        return None
    return _Source(layer.weight, layer.bias, layer.transposed)


def _has_bias(layer: Linear) -> bool:
    users = layer.node.outputs[0].uses()
    return any(use.node.op_type == "Add" for use in users) or len(layer.node.inputs) > 2


def _back(node: ir.Node | None, *operators: str) -> ir.Node | None:
    """The nearest node before this one with such an operator, past those that only move values."""
    while node is not None and node.op_type not in operators:
        if node.op_type not in _PASSED or node.inputs[0] is None:
            return None
        node = node.inputs[0].producer()
    return node


def _back_of(value: ir.Value | None, *operators: str) -> ir.Node | None:
    return _back(value.producer(), *operators) if value is not None else None


def _insert(model: ir.Model, users: Sequence[Linear], shift: Tensor, scale: Tensor) -> str:
    """Insert x / scale - shift / scale before linear layers; return the name of their inputs."""
    value, first = users[0].input, users[0].node
    constants = []
    for part, numbers in (("scale", 1 / scale), ("shift", -shift / scale)):
        name = f"{users[0].name}_input_{part}"
        constants.append(ir.Value(name=name, const_value=ir.tensor(numbers.numpy(), name=name)))
        model.graph.register_initializer(constants[-1])
    nodes = []
    for operator, constant in zip(("Mul", "Add"), constants, strict=True):
        nodes.append(ir.node(operator, [value, constant], name=f"{users[0].name}_input_{operator}"))
        value = nodes[-1].outputs[0]
        value.name, value.type, value.shape = nodes[-1].name, users[0].input.type, users[0].input.shape
    model.graph.insert_before(first, nodes)
    for user in users:
        user.node.replace_input_with(0, value)
    return str(value.name)
