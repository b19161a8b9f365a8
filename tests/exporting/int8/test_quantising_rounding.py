"""Weights that are rounded together keep the outputs of their layer."""

from __future__ import annotations

import torch

from edgevit.exporting.int8.calibrating import STEPS, Inputs
from edgevit.exporting.int8.quantising import round_weight, weight_steps


def test_weights_rounded_together_lose_less_of_the_outputs_and_stay_on_the_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 24, generator=generator) @ torch.randn(24, 160, generator=generator)  # of low rank
    weight = torch.randn(160, 8, generator=generator)
    steps = 16 * weight_steps(weight)  # so coarse that it shows
    inputs = Inputs(x.amin(0), x.amax(0), len(x), x.sum(0), (x**2).sum(0), x.mT @ x)
    nearest, together = round_weight(weight, steps, None), round_weight(weight, steps, inputs)
    for result in (nearest, together):
        grid = result / steps
        torch.testing.assert_close(grid, grid.round(), rtol=0, atol=1e-4)
        assert grid.abs().max() <= STEPS
    lost = [float((x @ (weight - result)).norm()) for result in (nearest, together)]
    assert lost[1] < lost[0] / 2


def test_inputs_that_are_constant_zero_are_rounded_to_the_nearest() -> None:
    weight, zeros = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(16)
    inputs = Inputs(zeros, zeros, 10, zeros, zeros, torch.zeros(16, 16))
    steps = weight_steps(weight)
    assert torch.equal(round_weight(weight, steps, inputs), round_weight(weight, steps, None))
