"""SnapViT: the heads and neurons that outputs depend on least are removed, without labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from problems import untrained

from edgevit.baselines.snapvit import Config, derive, evolve
from edgevit.data.task import open_task
from edgevit.network.model import describe


def test_the_evolution_finds_the_maximum_of_a_skewed_parabola() -> None:
    goal = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 0.1, 10.0, 1.0], dtype=torch.float64)

    def worth(x: torch.Tensor) -> float:
        return -float(((x - goal).square() * scale).sum())

    torch.testing.assert_close(evolve(worth, 4, 200, seed=0), goal, atol=1e-3, rtol=0)
    torch.testing.assert_close(evolve(worth, 4, 0, seed=0), torch.zeros(4, dtype=torch.float64))


def test_units_without_influence_go(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    blocks = network.read()
    unread = torch.arange(0, blocks[0].dims.ffn, 2)
    with torch.no_grad():
        for block in blocks:
            block.ffn.w1[unread] *= 5
            block.ffn.w2[:, unread] = 0
            block.attention.wo[0] = 0
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path, shape="free")
    for generations in (0, 3):
        plan = derive(problem, Config(calibration_images=8, generations=generations)).plan
        for block in plan.blocks:
            assert block.ffn is not None and block.attention is not None
            assert not set(block.ffn.neurons.tolist()) & set(unread.tolist())
            assert 0 not in block.attention.heads
