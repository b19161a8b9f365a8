"""NViT: one ranking of all kinds of units, round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.common.ranked import Grouping
from edgevit.baselines.nvit import Config, derive
from edgevit.data.task import open_task
from edgevit.derivation.problem import Derived
from edgevit.errors import BudgetError, OptionError
from edgevit.network.model import describe


@pytest.mark.slow
def test_a_head_that_nothing_reads_goes_and_rounds_change_what_stays(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    network = small_vit(depth=2, num_heads=4)
    with torch.no_grad():
        for block in network.read():
            block.attention.wo[1] = 0
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    plans = []
    for rounds in (1, 3):
        problem = untrained(base, task, 0.6, tmp_path, shape="free")
        made = derive(problem, Config(rounds=rounds, calibration_images=16))
        assert 1 - made.network.geometry.macs(made.network.dims) / base.spec.macs > 0.55
        plans.append(made.plan)
        for block in made.plan.blocks:
            assert block.attention is not None
            assert len(block.attention.heads) == 1 or 1 not in block.attention.heads
    kept = [[b.ffn.neurons.tolist() for b in plan.blocks if b.ffn is not None] for plan in plans]
    assert kept[0] != kept[1]


@pytest.fixture
def after(small_vit: Callable[..., Any], tmp_path: Path) -> Callable[..., Derived]:
    """What is left by so many rounds, of which each takes a share of the base's MACs."""
    args = {"depth": 2, "num_heads": 4}
    base = describe(small_vit(**args), "vit_tiny_patch16_224", args)
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)

    def cut(rounds: int, share: float, grouping: Grouping = "global", network: Any = None) -> Derived:
        """From another network all that is too much goes in one round."""
        problem = untrained(base, task, 0.6, tmp_path, shape="free")
        limit = base.spec.macs - rounds * int(share * base.spec.macs)
        problem = replace(problem, network=network or problem.network, budget=replace(problem.budget, limit=limit))
        config = Config(rounds=1 if network else rounds, calibration_images=32, grouping=grouping)
        return derive(problem, config)

    return cut


@pytest.mark.slow
@pytest.mark.parametrize("grouping", ["global", "isomorphic"])
def test_two_rounds_are_a_round_on_what_the_first_one_left(after: Callable[..., Derived], grouping: Grouping) -> None:
    both, first = after(2, 0.3, grouping), after(1, 0.3, grouping)
    second = after(2, 0.3, grouping, first.network)
    assert first.plan.embed is not None and both.plan.embed is not None and second.plan.embed is not None
    assert both.plan.dims == second.plan.dims and both.plan.embed.width == second.plan.embed.width
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(both.network.eval()(images), second.network.eval()(images))


@pytest.mark.slow
@pytest.mark.parametrize("grouping", ["global", "isomorphic"])
def test_what_has_gone_does_not_come_back(after: Callable[..., Derived], grouping: Grouping) -> None:
    def units(made: Derived) -> list[set[int]]:
        heads = [set(b.attention.heads) for b in made.plan.blocks if b.attention is not None]
        neurons = [set(b.ffn.neurons.tolist()) for b in made.plan.blocks if b.ffn is not None]
        encode = torch.eye(64) if made.plan.embed is None else made.plan.embed.encode
        return [*heads, *neurons, set(encode.nonzero()[:, 1].tolist())]

    rounds = [units(after(count, 0.15, grouping)) for count in (1, 2, 3)]
    for earlier, later in pairwise(rounds):
        assert all(new <= old for old, new in zip(earlier, later, strict=True))


@pytest.mark.slow
def test_rounds_narrow_the_embedding_no_further_than_one_may(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    base = describe(small_vit(depth=1, num_heads=4), "vit_tiny_patch16_224", {"depth": 1, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    for rounds in (1, 4):
        with pytest.raises(BudgetError):  # 8 channels of 64 are too many for that
            derive(untrained(base, task, 0.98, tmp_path, shape="free"), Config(rounds=rounds, calibration_images=16))


def test_rounds_are_counted() -> None:
    with pytest.raises(OptionError, match=r"nvit\.rounds 0 is not in \[1, "):
        Config(rounds=0)
