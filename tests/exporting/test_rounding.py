"""Outliers move into weights without a change of the function, and weights rounded together keep their outputs."""

from __future__ import annotations

import pytest
import torch
from small_models import random_base

from edgevit.exporting.calibrating import STEPS, Inputs, largest_inputs
from edgevit.exporting.graph import trace
from edgevit.exporting.int8 import predicted
from edgevit.exporting.linear import find_linear
from edgevit.exporting.rounding import round_weight, smooth, weight_steps

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_smoothing_is_exact_and_narrows_the_range_of_inputs() -> None:
    network = random_base(depth=1)
    with torch.no_grad():
        (block,) = network.block_modules
        block.norm1.weight[5], block.norm2.weight[7] = 40.0, 60.0
        block.attn.qkv.weight[2 * 64 + 9] *= 30  # one channel of the values
    model = trace(network, input_size=(3, 32, 32), batch="dynamic", opset=20)
    before, layers = predicted(model, [IMAGES]), find_linear(model.graph)
    names = list(dict.fromkeys(str(layer.input.name) for layer in layers))
    unsmoothed = largest_inputs(model, names, [IMAGES])
    inputs = largest_inputs(model, names, [IMAGES])
    assert smooth(layers, inputs) == 3, "qkv and fc1 by their norms, proj by the values; fc2 is after GELU"
    torch.testing.assert_close(predicted(model, [IMAGES]), before, rtol=1e-4, atol=1e-3)
    again = largest_inputs(model, names, [IMAGES])
    for name in names[:3]:
        torch.testing.assert_close(again[name].largest, inputs[name].largest, rtol=1e-4, atol=1e-5)
        spread = [of.largest.max() / of.largest.median() for of in (unsmoothed[name], again[name])]
        assert spread[1] < spread[0] / 2
    assert torch.equal(again[names[3]].largest, unsmoothed[names[3]].largest) or again[names[3]].peak == pytest.approx(
        unsmoothed[names[3]].peak, rel=1e-4
    )


def test_weights_rounded_together_lose_less_of_the_outputs_and_stay_on_the_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 24, generator=generator) @ torch.randn(24, 160, generator=generator)  # of low rank
    weight = torch.randn(160, 8, generator=generator)
    steps = 16 * weight_steps(weight)  # so coarse that it shows
    inputs = Inputs(x.abs().amax(0), len(x), x.sum(0), x.mT @ x)
    nearest, together = round_weight(weight, steps, None), round_weight(weight, steps, inputs)
    for result in (nearest, together):
        grid = result / steps
        torch.testing.assert_close(grid, grid.round(), rtol=0, atol=1e-4)
        assert grid.abs().max() <= STEPS
    lost = [float((x @ (weight - result)).norm()) for result in (nearest, together)]
    assert lost[1] < lost[0] / 2


def test_inputs_that_are_constant_zero_are_rounded_to_the_nearest() -> None:
    weight, zeros = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(16)
    inputs = Inputs(zeros, 10, zeros, torch.zeros(16, 16))
    steps = weight_steps(weight)
    assert torch.equal(round_weight(weight, steps, inputs), round_weight(weight, steps, None))
