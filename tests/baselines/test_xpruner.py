"""X-Pruner: masks fall where the loss does not hold them up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.xpruner import Config, derive, learn_masks
from edgevit.data.task import open_task
from edgevit.derivation.problem import Problem
from edgevit.errors import OptionError
from edgevit.network.model import describe

FEW = Config(calibration_images=48, mask_passes=3)


def opened(network: Any, folder: Path, shape: str = "fused") -> Problem:
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.4, folder, shape=shape)


def test_masks_of_units_that_say_nothing_fall_furthest(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    with torch.no_grad():
        for block in network.read():
            block.ffn.w2[:, ::2] = 0
            block.attention.wo[1] = 0
            block.ffn.w2.mul_(20)  # what is left matters
            block.attention.wo.mul_(20)
    problem = opened(network, tmp_path)
    before = [p.detach().clone() for p in problem.network.parameters()]
    scores = learn_masks(problem.network, problem.task.train.subset(48), problem.passes, FEW, seed=42)
    for block in scores.blocks:
        assert block["heads"].argmin() == 1
        assert block["ffn"][::2].mean() < block["ffn"][1::2].mean()
        assert (block["ffn"][::2] < 2).all(), "each of two masks was 1"
    assert all(torch.equal(a, b) for a, b in zip(before, problem.network.parameters(), strict=True))
    assert all(p.grad is None for p in problem.network.parameters())


def test_heads_and_neurons_go_and_nothing_else(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    made = derive(problem, FEW)
    for block in made.plan.blocks:
        assert block.attention is not None and block.attention.widths == (16, 16)
    assert sum(len(b.attention.heads) for b in made.plan.blocks if b.attention is not None) < 8


def test_the_same_masks_are_learned_twice(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    images = problem.task.train.subset(24)
    one, two = (learn_masks(problem.network, images, problem.passes, FEW, seed=42) for _ in range(2))
    assert all(torch.equal(a["ffn"], b["ffn"]) for a, b in zip(one.blocks, two.blocks, strict=True))


def test_each_pass_shows_every_image_once_in_an_order_that_the_seed_draws(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    images = problem.task.train.subset(24)
    (whole, labels), seen = next(images.batches(24)), list[torch.Tensor]()
    problem.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))

    def orders(seed: int) -> list[list[int]]:
        seen.clear()
        learn_masks(problem.network, images, problem.passes, FEW, seed=seed)
        at = [int((whole == image).flatten(1).all(1).nonzero()) for image in torch.cat(seen)]
        return [at[i : i + 24] for i in range(0, len(at), 24)]

    assert labels.tolist() == sorted(labels.tolist()), "they lie class by class"
    one = orders(1)
    assert len(one) == FEW.mask_passes and all(sorted(order) == list(range(24)) for order in one)
    assert len({*map(tuple, [*one, range(24)])}) == FEW.mask_passes + 1
    assert one == orders(1) != orders(2)


@pytest.mark.parametrize("name", ["calibration_images", "mask_passes", "mask_lr", "sparsity"])
def test_options_are_checked(name: str) -> None:
    with pytest.raises(OptionError, match=rf"xpruner\.{name}[= ]0 is "):
        Config(**{name: 0})
