"""From scores to a plan: the units of the highest scores stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.common.importance import Scores, unit_shapes
from edgevit.baselines.common.ranked import RankOptions, choose_units, derive_by_rank, plan_of
from edgevit.data.task import open_task
from edgevit.derivation.problem import Problem
from edgevit.network.model import describe

WIDE = RankOptions(attention="both", cut_embedding=True)


@pytest.fixture
def problem(small_vit: Callable[..., Any], tmp_path: Path) -> Problem:
    base = describe(small_vit(depth=2, num_heads=4), "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.6, tmp_path)


def rising(problem: Problem) -> Scores:
    """The last units of every kind are worth most."""

    def up(*shape: int) -> torch.Tensor:
        return (torch.arange(shape[-1], dtype=torch.float64) + 1).expand(shape).clone()

    blocks = [{axis: up(*shape) for axis, shape in unit_shapes(d).items()} for d in problem.network.dims]
    return Scores(blocks, up(problem.network.geometry.embed))


def test_the_plan_keeps_the_highest_of_every_kind(problem: Problem) -> None:
    scores = rising(problem)
    plan = plan_of(problem.network, scores, choose_units(problem, WIDE, scores))
    before = problem.network.read()
    for block, base in zip(plan.blocks, before, strict=True):
        a, f = block.attention, block.ffn
        assert a is not None and f is not None and a.weights is not None and base.attention is not None
        assert a.heads == tuple(range(4 - len(a.heads), 4))
        assert f.neurons.tolist() == list(range(base.dims.ffn - f.width, base.dims.ffn))
        assert torch.equal(a.weights.wv, base.attention.wv[list(a.heads)][:, base.dims.vo - a.widths[1] :])
    assert plan.embed is not None and plan.embed.encode is not None
    last = torch.arange(plan.embed.encode.shape[1] - plan.embed.width, plan.embed.encode.shape[1])
    assert torch.equal(plan.embed.encode.nonzero()[:, 1], last)


def test_a_derivation_says_what_stayed_and_how_good_it_is_before_training(problem: Problem) -> None:
    made = derive_by_rank(problem, RankOptions(), rising(problem))
    assert made.facts["steps"] == 0 and made.facts["kept_blocks"] == [0, 1]
    assert made.facts["kept_heads"] == [[0, 1, 2, 3]] * 2 and "embed" not in made.facts
    assert 0 <= made.facts["accuracy_validation_cut"] <= 1  # type: ignore[operator]
