"""Prepare linear layers for INT8 in closed form: move outliers of inputs into weights, and round weights together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.exporting.calibrating import STEPS, Inputs, halves
from edgevit.exporting.linear import Linear, is_own, read_constant, write_constant

SHARE = 0.5  # of an outlier that moves into the weights: the alpha of SmoothQuant
PASSED = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather")  # between V and its layer
DAMPING = 0.01  # of a layer's moments, relative to their mean diagonal
BLOCK = 128


def smooth(layers: Sequence[Linear], inputs: Mapping[str, Inputs]) -> int:
    """Divide each channel of the inputs of linear layers by a factor and multiply its weights by it, in place.

    The function stays the same: a normalisation before the layers divides by its own weights, and the values of an
    attention by those of their layer. Other inputs stay, as there is no exact way through GELU. Returns the number of
    layers that changed.
    """
    by_input: dict[str | None, list[Linear]] = {}
    for layer in layers:
        by_input.setdefault(layer.input.name, []).append(layer)
    changed = 0
    for name, users in by_input.items():
        assert name is not None
        maker = users[0].input.producer()
        if maker is None or len(users[0].input.uses()) != len(users):
            continue
        largest = inputs[name].largest
        weights = torch.stack([layer.read().abs().amax(1) for layer in users]).amax(0)
        factors = largest.clamp_min(1e-5) ** SHARE / weights.clamp_min(1e-5) ** (1 - SHARE)
        factors = torch.where((largest > 0) & (weights > 0), factors, 1.0)
        if not (_divide_norm(maker, factors) or _divide_values(maker, layers, factors)):
            continue
        for layer in users:
            layer.write(layer.read() * factors[:, None])
        inputs[name].largest = largest / factors
        changed += len(users)
    return changed


def _divide_norm(norm: ir.Node, factors: Tensor) -> bool:
    """Divide what a layer normalisation puts out; False: it is something else."""
    if norm.op_type != "LayerNormalization" or not all(is_own(value, 1) for value in norm.inputs[1:]):
        return False
    for value in norm.inputs[1:]:
        assert value is not None
        write_constant(value, read_constant(value) / factors)
    return True


def _divide_values(node: ir.Node, layers: Sequence[Linear], factors: Tensor) -> bool:
    """Divide the values of an attention whose heads this node puts together; False: it is something else."""
    product = _back(node, "MatMul")
    if product is None or (softmax := _back_of(product.inputs[0], "Softmax")) is None or softmax is product:
        return False
    by_output = {id(layer.node): layer for layer in layers}
    source = _back_of(product.inputs[1], "Add", "MatMul", "Gemm")
    if source is not None and source.op_type == "Add":
        makers = [value.producer() for value in source.inputs if value is not None]
        source = next((maker for maker in makers if maker is not None and maker.op_type == "MatMul"), None)
    layer = by_output.get(id(source)) if source is not None else None
    if layer is None or (layer.bias is None and _has_bias(layer)):
        return False
    weight, width = layer.read(), len(factors)
    if weight.shape[1] not in (width, 3 * width):  # values alone, or after queries and keys
        return False
    weight[:, -width:] /= factors
    layer.write(weight)
    if layer.bias is not None:
        bias = read_constant(layer.bias)
        bias[-width:] /= factors
        write_constant(layer.bias, bias)
    return True


def _has_bias(layer: Linear) -> bool:
    users = layer.node.outputs[0].uses()
    return any(use.node.op_type == "Add" for use in users) or len(layer.node.inputs) > 2


def _back(node: ir.Node | None, *operators: str) -> ir.Node | None:
    """The nearest node before this one with such an operator, past those that only move values."""
    while node is not None and node.op_type not in operators:
        if node.op_type not in PASSED or node.inputs[0] is None:
            return None
        node = node.inputs[0].producer()
    return node


def _back_of(value: ir.Value | None, *operators: str) -> ir.Node | None:
    return _back(value.producer(), *operators) if value is not None else None


def weight_steps(weight: Tensor) -> Tensor:
    """The step of INT8 of each output channel of a weight [in, out]."""
    return halves(weight.abs().amax(0) / STEPS)


def round_weight(weight: Tensor, steps: Tensor, inputs: Inputs | None) -> Tensor:
    """Round a weight [in, out] to multiples of `steps` [out]: to the nearest, or, with inputs, together.

    Together: row by row, where those that are left correct the error of the output that a rounded row causes (GPTQ, in
    the order of the inputs' energy).
    """
    if inputs is None or inputs.products is None:
        return (weight / steps).round().clamp(-STEPS, STEPS) * steps
    moments = inputs.products.double() / max(inputs.rows, 1)
    damping = DAMPING * moments.diagonal().mean()
    if not damping > 0:
        return round_weight(weight, steps, None)
    order = moments.diagonal().argsort(descending=True)
    moments = moments[order][:, order] + damping * torch.eye(len(order), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor = torch.linalg.cholesky(inverse, upper=True).to(weight.dtype)
    remaining, result = weight[order].clone(), torch.empty_like(weight)
    for start in range(0, len(remaining), BLOCK):
        part, block = remaining[start : start + BLOCK], factor[start : start + BLOCK, start : start + BLOCK]
        errors = torch.empty_like(part)
        for i in range(len(part)):
            result[start + i] = round_weight(part[i], steps, None)
            errors[i] = (part[i] - result[start + i]) / block[i, i]
            part[i:] -= torch.outer(block[i, i:], errors[i])
        remaining[start + BLOCK :] -= factor[start : start + BLOCK, start + BLOCK :].mT @ errors
    unordered = torch.empty_like(result)
    unordered[order] = result
    return unordered


def round_layer(layer: Linear, inputs: Inputs, *, together: bool) -> Tensor:
    """Round a layer's weight in place and correct its bias for the mean error; return the steps [out]."""
    weight = layer.read()
    steps = weight_steps(weight)
    result = round_weight(weight, steps, inputs if together else None)
    layer.write(result)
    if together and layer.bias is not None and inputs.total is not None:
        mean = inputs.total / max(inputs.rows, 1)
        write_constant(layer.bias, read_constant(layer.bias) + mean @ (weight - result))
    return steps
