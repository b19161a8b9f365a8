"""Quantise the linear layers of a graph explicitly (Q/DQ), and give single layers back to floating point.

Q/DQ nodes are inserted by ONNX Runtime's quantiser, which keeps the names of nodes and takes steps from outside. All
values are symmetric, with one step for the inputs of a layer and one for each output channel of its weight. Biases,
normalisations, softmax, products of attention and residual sums are in floating point.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from torch import Tensor

from edgevit.errors import ExportError
from edgevit.exporting.imported.reading import QUANTISED
from edgevit.exporting.int8.calibrating import STEPS, Inputs, add_moments, halves, step_of, watch_inputs
from edgevit.exporting.int8.linear import LINEAR, Linear, find_linear, read_constant, write_constant
from edgevit.exporting.int8.rescaling import rescale

# The scale and zero point of each input and weight by its name, as ONNX Runtime's quantiser takes them.
_Steps = dict[str, Any]
_DAMPING = 0.01  # damping of a layer's moments, relative to their mean diagonal
_BLOCK = 128


@dataclass(frozen=True)
class RoundedLayer:
    """A linear layer of a quantised graph."""

    name: str  # name of the layer's node
    macs: int  # MACs of one image
    weight: str  # name of the constant of its weight
    bias: str | None  # name of the constant of its bias; None: it has none


@dataclass(frozen=True)
class Quantised:
    """A graph with all linear layers in INT8."""

    model: ir.Model
    floating: ir.Model  # graph of the same function in floating point, with rescaled inputs
    layers: tuple[RoundedLayer, ...]
    rescaled: int  # number of layers whose inputs were centred and scaled

    def without(self, names: Collection[str]) -> ir.Model:
        """A copy in which these layers are in floating point."""
        model, constants = self.model.clone(), self.floating.graph.initializers
        nodes = {node.name: node for node in model.graph}
        for layer in self.layers:
            if layer.name not in names:
                continue
            node, weight = nodes[layer.name], constants[layer.weight]
            node.replace_input_with(0, _before(_before(node.inputs[0])))
            constant = ir.Value(name=weight.name, shape=weight.shape, type=weight.type, const_value=weight.const_value)
            model.graph.initializers[layer.weight] = constant
            node.replace_input_with(1, constant)
            if layer.bias is not None:
                model.graph.initializers[layer.bias].const_value = constants[layer.bias].const_value
        return passes.RemoveUnusedNodesPass()(model).model


def _before(value: ir.Value | None) -> ir.Value | None:
    maker = value.producer() if value is not None else None
    return maker.inputs[0] if maker is not None else None


def quantise(
    model: ir.Model, batches: Sequence[Tensor], method: str, *, rescaling: bool = True, correcting: bool = True
) -> Quantised:
    """Quantise all linear layers of a graph in fp32, which changes, by images [B, C, H, W] of the training part.

    `rescaling` centres and scales the inputs of a layer, `correcting` rounds its weights together and corrects its
    bias; without them weights are rounded to the nearest.

    Raises:
        ExportError: there is no linear layer, or an input of one is not finite.
    """
    linear = find_linear(model.graph)
    if not linear:
        raise ExportError("the model has no linear layer, which INT8 is for; leave --precision int8 out")
    inputs = watch_inputs(model, list(dict.fromkeys(str(layer.input.name) for layer in linear)), batches)
    rescaled = rescale(model, linear, inputs) if rescaling else 0
    add_moments(model, inputs, batches)
    images = sum(map(len, batches))
    layers = []
    for layer in linear:
        macs = inputs[str(layer.input.name)].rows // images * layer.read().numel()
        bias = layer.bias.name if layer.bias is not None else None
        layers.append(RoundedLayer(layer.name, macs, str(layer.weight.name), bias))
    floating = model.clone()
    overrides: _Steps = {name: [_step(step_of(of, method))] for name, of in inputs.items()}
    for layer in linear:
        steps = _round_layer(layer, inputs[str(layer.input.name)], together=correcting)
        axis = 0 if layer.transposed else 1
        overrides[str(layer.weight.name)] = [{**_step(step), "axis": axis} for step in steps.tolist()]
    return Quantised(_inserted(model, inputs, overrides, linear), floating, tuple(layers), rescaled)


def _step(step: float) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    return {"quant_type": QuantType.QInt8, "scale": np.array(step, np.float32), "zero_point": np.array(0, np.int8)}


def _inserted(model: ir.Model, inputs: Collection[str], overrides: _Steps, layers: Sequence[Linear]) -> ir.Model:
    """Insert Q/DQ nodes with these steps, each named by the module of its layer."""
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData

    ranges = {}
    for name in inputs:
        limit = STEPS * overrides[name][0]["scale"]
        ranges[name] = TensorData(lowest=-limit, highest=limit)
    quantiser = QDQQuantizer(
        ir.to_proto(model),
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
        nodes_to_quantize=[layer.name for layer in layers],
        nodes_to_exclude=[],
        op_types_to_quantize=list(LINEAR),
        extra_options={
            "TensorQuantOverrides": overrides,
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,  # TensorRT takes biases in floating point
            "OpTypesToExcludeOutputQuantization": list(LINEAR),
        },
    )
    quantiser.quantize_model()
    quantised: ir.Model = ir.from_proto(quantiser.model.model)
    for step in (passes.TopologicalSortPass(), passes.ShapeInferencePass()):
        quantised = step(quantised).model
    quantised.metadata_props.clear()
    for layer in layers:
        node = next(node for node in quantised.graph if node.name == layer.name)
        for value, part in zip(node.inputs[:2], ("input", "weight"), strict=True):
            while value is not None and (maker := value.producer()) is not None and maker.op_type in QUANTISED:
                maker.name = f"{layer.name}_{part}_{maker.op_type}"
                value = maker.inputs[0]
    return quantised


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


def _round_layer(layer: Linear, inputs: Inputs, *, together: bool) -> Tensor:
    """Round a layer's weight in place and correct its bias for the mean error; return the steps [out]."""
    weight = layer.read()
    steps = weight_steps(weight)
    result = round_weight(weight, steps, inputs if together else None)
    layer.write(result)
    if together and layer.bias is not None:
        write_constant(layer.bias, read_constant(layer.bias) + inputs.mean.float() @ (weight - result))
    return steps
