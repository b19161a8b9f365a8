"""Ranges of INT8 follow the magnitudes that were seen, by the method that was asked for."""

from __future__ import annotations

import pytest
import torch
from small_models import random_base

from edgevit.errors import ExportError
from edgevit.exporting.graph import trace
from edgevit.exporting.int8.calibrating import BINS, RANGES, STEPS, Inputs, add_moments, halves, step_of, watch_inputs
from edgevit.exporting.int8.linear import find_linear, write_constant
from edgevit.exporting.request import METHODS


def seen(values: torch.Tensor) -> Inputs:
    peak = float(values.abs().max())
    total, squares = values.sum(0, keepdim=True), (values**2).sum(0, keepdim=True)
    of = Inputs(torch.tensor([-peak]), torch.tensor([peak]), len(values), total, squares)
    of.magnitudes = torch.histc(values.abs(), BINS, 0, peak)
    return of


def test_outliers_decide_the_range_by_max_alone() -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    values[0] = 60
    limits = {method: STEPS * step_of(seen(values), method) for method in METHODS}
    assert set(METHODS) == set(RANGES) and limits["max"] == pytest.approx(60, rel=1e-3)
    assert 3.5 < limits["percentile"] < 4.5 and 3 < limits["entropy"] < 6


def test_steps_are_numbers_of_fp16_that_cover_the_range() -> None:
    steps = torch.tensor([0.0, 1e-9, 0.1, 1.0, 3.3333])
    found = halves(steps)
    assert torch.equal(found.half().float(), found) and bool((found >= steps).all()) and bool((found > 0).all())
    torch.testing.assert_close(found[2:], steps[2:], rtol=1e-3, atol=0)


def test_moments_are_those_of_the_rows_of_all_batches() -> None:
    model = trace(random_base(depth=1), input_size=(3, 32, 32), batch="dynamic", opset=20)
    name = str(find_linear(model.graph)[0].input.name)
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole, parts = (watch_inputs(model, [name], batches) for batches in ([images], images.split(4)))
    add_moments(model, whole, [images])
    add_moments(model, parts, images.split(4))
    assert whole[name].rows == parts[name].rows == 6 * 17
    for part in ("lowest", "highest", "total", "squares", "products", "magnitudes"):
        torch.testing.assert_close(getattr(whole[name], part), getattr(parts[name], part), rtol=1e-4, atol=1e-3)


def test_inputs_that_overflow_are_one_line() -> None:
    model = trace(random_base(depth=1), input_size=(3, 32, 32), batch="dynamic", opset=20)
    layers = find_linear(model.graph)
    assert layers[2].bias is not None
    write_constant(layers[2].bias, torch.full((256,), float("inf")))
    with pytest.raises(ExportError, match="gelu is NaN or infinite on calibration images"):
        watch_inputs(model, [str(layers[3].input.name)], [torch.zeros(1, 3, 32, 32)])
    write_constant(layers[2].bias, torch.full((256,), 1e30))
    images = [torch.zeros(1, 3, 32, 32)]
    inputs = watch_inputs(model, [str(layers[3].input.name)], images)
    with pytest.raises(
        ExportError, match=r"gelu is as large as 1e\+30 on calibration images, and its squares overflow"
    ):
        add_moments(model, inputs, images)
