"""DC-ViT: few blocks lose their attention and a share of their FFN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.dcvit import Config, choose_blocks, derive, losses, plan_of
from edgevit.data.task import open_task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.problem import Problem
from edgevit.errors import BudgetError, OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.model import describe

DIMS = [BlockDims(4, 16, 16, 256)] * 6


def opened(network: Any, folder: Path, rate: float) -> Problem:
    base = describe(network, "vit_tiny_patch16_224", {"depth": 3, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, rate, folder, shape="fused")


@pytest.mark.parametrize("shape", ["fused", "free"])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_no_fewer_blocks_and_no_wider_ffns_would_do(small_vit: Callable[..., Any], rate: float, shape: str) -> None:
    geometry, order = small_vit(depth=6).geometry, [4, 1, 3, 0, 5, 2]
    budget, policy = make_budget(geometry.macs(DIMS), 1, rate=rate), make_policy(shape)
    chosen = choose_blocks(DIMS, order, geometry, budget, policy)
    cut = {i for i, d in enumerate(chosen) if not d.has("attention")}
    assert cut == set(order[: len(cut)]) and budget.allows(budget.cost(chosen, geometry))
    (width,) = {chosen[i].ffn for i in cut}
    whole = [d for i, d in enumerate(chosen) if i not in cut]
    assert whole == [DIMS[0]] * (6 - len(cut))
    wider = [BlockDims(0, 0, 0, width + policy.ffn_step) if i in cut else d for i, d in enumerate(chosen)]
    assert width + policy.ffn_step > 256 or not budget.allows(budget.cost(wider, geometry))
    fewer = [BlockDims(0, 0, 0, policy.minimum("ffn")) if i in order[: len(cut) - 1] else d for i, d in enumerate(DIMS)]
    assert not budget.allows(budget.cost(fewer, geometry))


def test_a_budget_below_every_attention_gone_is_refused(small_vit: Callable[..., Any]) -> None:
    geometry = small_vit(depth=6).geometry
    budget = make_budget(geometry.macs(DIMS), 1, rate=0.999)
    with pytest.raises(BudgetError, match="with the attention of 6 of 6 blocks gone; raise the budget"):
        choose_blocks(DIMS, range(6), geometry, budget, make_policy("fused"))


def test_what_is_lost_is_that_of_the_network_without_the_attention(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    network = small_vit(depth=3, num_heads=4)
    with torch.no_grad():  # an attention that adds nothing
        last = network.read()[1].attention
        last.wo.zero_()
        last.bo.zero_()
    problem = opened(network, tmp_path, 0.2)
    images = problem.task.train.subset(24)
    lost = losses(problem.network, images, problem.passes)
    assert lost[1] < 1e-9 < min(lost[0], lost[2])
    made = derive(problem, Config(calibration_images=24))
    assert made.facts["blocks_cut"] == [1] and made.plan.blocks[1].attention is None
    assert [len(b.attention.heads) for b in made.plan.blocks if b.attention is not None] == [4, 4]


@pytest.mark.quick("vit_tiny*")
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_rpn_224"])
def test_what_is_lost_is_that_of_the_cut_model(small_vit: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """With a norm after the attention as well, whose bias goes with it."""
    network = small_vit(name, depth=3, num_heads=4)
    with torch.no_grad():
        for block in network.module.blocks:
            block.norm1.bias.normal_(0, 0.5)
    problem = opened(network, tmp_path, 0.2)
    images = problem.task.train.subset(24)
    found = losses(problem.network, images, problem.passes)
    whole = network_outputs(problem.network, images, problem.passes)
    for i, lost in enumerate(found):
        blocks = problem.network.read()
        blocks[i] = replace(blocks[i], attention=None)
        cut = network_outputs(problem.network.build(blocks).eval(), images, problem.passes)
        assert lost == pytest.approx(divergence(problem.network.output, whole, cut), rel=1e-4, abs=1e-9)


def test_blocks_that_are_not_cut_keep_the_weights_that_they_have(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=3, num_heads=4), tmp_path, 0.2)
    before = {name: p.detach().clone() for name, p in problem.network.named_parameters()}
    made = derive(problem, Config(calibration_images=24))
    whole = [i for i in range(3) if i not in made.facts["blocks_cut"]]  # type: ignore[operator]
    assert whole
    prefixes = tuple(f"blocks.{i}." for i in whole)
    kept = {name: p for name, p in made.network.named_parameters() if name.startswith(prefixes)}
    assert len(kept) == 12 * len(whole)
    assert all(torch.equal(p, before[name]) for name, p in kept.items())


def test_neurons_are_drawn_by_the_seed(small_vit: Callable[..., Any]) -> None:
    blocks = small_vit(depth=2).read()
    chosen = [BlockDims(0, 0, 0, 64), blocks[1].dims]
    one, same, other = (plan_of(blocks, chosen, seed).blocks[0].ffn for seed in (1, 1, 2))
    assert one is not None and same is not None and other is not None
    assert one.neurons.tolist() == same.neurons.tolist() != other.neurons.tolist()


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match=r"dcvit\.calibration_images 0 is not in \[1, "):
        Config(calibration_images=0)
