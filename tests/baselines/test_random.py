"""Random units: drawn by the seed, and the same share everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from problems import untrained

from edgevit.baselines.random import Config, derive
from edgevit.data.task import open_task
from edgevit.network.model import describe


def test_a_seed_draws_and_all_blocks_are_cut_alike(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    base = describe(small_vit(depth=2, num_heads=4), "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path, shape="free")
    plans = [derive(problem, Config()).plan]
    plans.append(derive(replace(problem, training=replace(problem.training, seed=7)), Config()).plan)
    for plan in plans:
        one, two = plan.blocks
        assert one.ffn and two.ffn and abs(one.ffn.width - two.ffn.width) <= 1
        assert one.ffn.neurons.tolist() != two.ffn.neurons.tolist()[: one.ffn.width]
    first, other = (plan.blocks[0].ffn for plan in plans)
    assert first and other and first.width == other.width and first.neurons.tolist() != other.neurons.tolist()
