"""Round the weights of linear layers to INT8: the rounding errors of a layer correct each other, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from edgevit.exporting.calibrating import STEPS, Inputs, halves
from edgevit.exporting.linear import Linear, read_constant, write_constant

_DAMPING = 0.01  # of a layer's moments, relative to their mean diagonal
_BLOCK = 128


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
    moments = inputs.products.double() / inputs.rows
    damping = _DAMPING * moments.diagonal().mean()
    if not damping > 0:
        return round_weight(weight, steps, None)
    order = moments.diagonal().argsort(descending=True)
    moments = moments[order][:, order] + damping * torch.eye(len(order), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor = torch.linalg.cholesky(inverse, upper=True).to(weight.dtype)
    remaining, result = weight[order].clone(), torch.empty_like(weight)
    for start in range(0, len(remaining), _BLOCK):
        part, block = remaining[start : start + _BLOCK], factor[start : start + _BLOCK, start : start + _BLOCK]
        errors = torch.empty_like(part)
        for i in range(len(part)):
            result[start + i] = round_weight(part[i], steps, None)
            errors[i] = (part[i] - result[start + i]) / block[i, i]
            part[i:] -= torch.outer(block[i, i:], errors[i])
        remaining[start + _BLOCK :] -= factor[start : start + _BLOCK, start + _BLOCK :].mT @ errors
    unordered = torch.empty_like(result)
    unordered[order] = result
    return unordered


def round_layer(layer: Linear, inputs: Inputs, *, together: bool) -> Tensor:
    """Round a layer's weight in place and correct its bias for the mean error; return the steps [out]."""
    weight = layer.read()
    steps = weight_steps(weight)
    result = round_weight(weight, steps, inputs if together else None)
    layer.write(result)
    if together and layer.bias is not None:
        write_constant(layer.bias, read_constant(layer.bias) + inputs.mean.float() @ (weight - result))
    return steps
