"""MDP: the most importance within the budget, over all dimensions at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.common.importance import Scores, unit_shapes
from edgevit.baselines.mdp import Config, choose_sizes, derive
from edgevit.data.task import open_task
from edgevit.derivation.problem import Problem
from edgevit.errors import BudgetError, OptionError
from edgevit.network.model import describe


def opened(network: Any, rate: float, folder: Path, shape: str = "paper") -> Problem:
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, rate, folder, shape=shape)


def told(problem: Problem, *, embed: float = 1.0, ffn: float = 1.0) -> Scores:
    """Random importance, that of channels and of neurons so many times as high."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

    factors = {"heads": 16, "ffn": ffn}
    blocks = [
        {axis: factors.get(axis, 1) * drawn(*shape) for axis, shape in unit_shapes(d).items()}
        for d in problem.network.dims
    ]
    return Scores(blocks, embed * drawn(problem.network.geometry.embed))


def test_the_budget_is_met_and_what_is_dear_stays(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), 0.6, tmp_path)
    cheap_channels, _ = choose_sizes(problem, Config(), told(problem, embed=0.0))
    dear_channels, _ = choose_sizes(problem, Config(), told(problem, embed=1e6))
    assert cheap_channels.embed < dear_channels.embed == 64
    dear_neurons, _ = choose_sizes(problem, Config(cut_embedding=False), told(problem, ffn=100.0))
    cheap_neurons, _ = choose_sizes(problem, Config(cut_embedding=False), told(problem, ffn=0.01))
    assert sum(d.ffn for d in dear_neurons.dims) > 2 * sum(d.ffn for d in cheap_neurons.dims)
    for found in (cheap_channels, dear_channels, dear_neurons, cheap_neurons):
        cost = problem.network.geometry_at(found.embed).macs(found.dims)
        assert 0.95 * problem.budget.limit < cost <= problem.budget.limit


def test_no_single_exchange_keeps_more(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    """Against every pair of FFN widths with the attention as chosen: none within the budget gives up less."""
    problem = opened(small_vit(depth=2, num_heads=4), 0.5, tmp_path)
    config, scores = Config(cut_embedding=False, drop_heads=False), told(problem)
    found, _ = choose_sizes(problem, config, scores)
    geometry = problem.network.geometry_at(found.embed)

    def kept(widths: tuple[int, ...]) -> float:
        pairs = zip(scores.blocks, widths, strict=True)
        return sum(float(block["ffn"].sort(descending=True).values[:width].sum()) for block, width in pairs)

    chosen = kept(tuple(d.ffn for d in found.dims))
    for one in range(8, 257, 8):
        for two in range(8, 257, 8):
            dims = [replace(d, ffn=w) for d, w in zip(found.dims, (one, two), strict=True)]
            assert geometry.macs(dims) > problem.budget.limit or kept((one, two)) <= chosen + 1e-9


@pytest.mark.slow
def test_a_derivation_is_made_and_says_what_it_gave_up(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    made = derive(opened(small_vit(depth=2, num_heads=4), 0.6, tmp_path), Config(calibration_images=16))
    assert made.facts["importance_given_up"] > 0  # type: ignore[operator]
    with pytest.raises(BudgetError):
        derive(opened(small_vit(depth=2, num_heads=4), 0.97, tmp_path, "fused"), Config(calibration_images=16))
    with pytest.raises(OptionError, match=r"mdp\.calibration_images 0 is not in"):
        Config(calibration_images=0)
