"""Inputs of linear layers are centred and scaled without a change of the function, where INT8 gains by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import random_base
from torch import nn

from edgevit.exporting.graph import trace
from edgevit.exporting.int8 import rescaling
from edgevit.exporting.int8.calibrating import STEPS, watch_inputs
from edgevit.exporting.int8.linear import find_linear
from edgevit.exporting.int8.rescaling import choose_scale, rescale, rounding_error
from edgevit.exporting.int8.write import predicted

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def base(*, values_bias: bool = True) -> nn.Module:
    """A ViT with outliers in the inputs of most layers."""
    network = random_base(depth=1)
    with torch.no_grad():
        (block,) = network.block_modules
        block.norm1.weight[5], block.norm1.bias[6], block.norm2.weight[7] = 40.0, 30.0, 60.0
        block.attn.qkv.weight[2 * 64 + 9] *= 30  # one channel of the values
        block.attn.qkv.bias[2 * 64 + 9] = 20.0
        if not values_bias:
            block.attn.qkv.bias = None
    return network


def opened(network: nn.Module) -> tuple[Any, list[Any], dict[str, Any]]:
    model = trace(network, input_size=(3, 32, 32), batch="dynamic", opset=20)
    layers = find_linear(model.graph)
    return model, layers, watch_inputs(model, [str(layer.input.name) for layer in layers], [IMAGES])


def test_the_function_stays_and_inputs_are_centred_and_alike() -> None:
    model, layers, inputs = opened(base())
    before, unscaled = predicted(model, [IMAGES]), dict(inputs)
    assert rescale(model, layers, inputs) == 5
    torch.testing.assert_close(predicted(model, [IMAGES]), before, rtol=1e-4, atol=2e-3)
    seen = watch_inputs(model, list(inputs), [IMAGES])
    for name, of in inputs.items():
        for part in ("lowest", "highest", "total", "squares"):
            torch.testing.assert_close(getattr(seen[name], part), getattr(of, part), rtol=1e-3, atol=1e-2)
    for layer in layers[:3]:
        name, weight = str(layer.input.name), layer.read()
        torch.testing.assert_close(seen[name].lowest, -seen[name].highest, rtol=1e-3, atol=1e-3)
        spread = [of.highest.max() / of.highest.median() for of in (unscaled[name], seen[name])]
        assert spread[1] < spread[0] / 2
        assert len(weight) == len(inputs[name].lowest)


@pytest.mark.slow
def test_an_operation_is_inserted_only_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layers, inputs = opened(base())
    operations = [node.name for node in model.graph]
    rescale(model, layers, inputs)
    inserted = [node.name for node in model.graph if node.name not in operations]
    assert inserted == ["blocks.0.mlp.fc2/MatMul_input_Mul", "blocks.0.mlp.fc2/MatMul_input_Add"]
    monkeypatch.setattr(rescaling, "WORTH", 0.0)
    model, layers, inputs = opened(base())
    assert rescale(model, layers, inputs) == 4 and [node.name for node in model.graph] == operations


def test_values_without_a_bias_are_scaled_and_not_centred() -> None:
    model, layers, inputs = opened(base(values_bias=False))
    before = predicted(model, [IMAGES])
    assert rescale(model, layers, inputs) >= 2
    torch.testing.assert_close(predicted(model, [IMAGES]), before, rtol=1e-4, atol=2e-3)


def test_the_predicted_error_is_that_of_rounding() -> None:
    _, layers, inputs = opened(base())
    layer = layers[2]
    of, weight = inputs[str(layer.input.name)], layer.read()
    generator = torch.Generator().manual_seed(0)
    rows = (
        of.mean.float()
        + torch.randn(4000, len(weight), generator=generator)
        * (of.squares / of.rows - of.mean**2).clamp_min(0).sqrt().float()
    )
    rows = rows.clamp(-of.peak, of.peak)
    step, steps = of.peak / STEPS, weight.abs().amax(0) / STEPS
    rounded = (rows / step).round() * step @ ((weight / steps).round() * steps)
    measured = float((rounded - rows @ weight).square().sum(1).mean())
    assert measured == pytest.approx(rounding_error(of, weight), rel=0.35)
    scale = choose_scale(of, weight)
    none = torch.zeros_like(scale)
    assert rounding_error(of.rescaled(none, scale), weight * scale[:, None]) < rounding_error(of, weight) / 2


def test_constant_inputs_are_left_as_they_are() -> None:
    _, layers, inputs = opened(base())
    of = inputs[str(layers[0].input.name)]
    zeros = torch.zeros_like(of.lowest)
    of.lowest = of.highest = zeros
    assert torch.equal(choose_scale(of, layers[0].read()), torch.ones_like(zeros))
