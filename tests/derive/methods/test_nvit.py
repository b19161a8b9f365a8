"""NViT: one ranking of all kinds of units, round by round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derive.methods.nvit import Config, derive
from edgevit.errors import OptionError
from edgevit.models.checkpoint import describe
from edgevit.models.families import family_of


def test_a_head_that_nothing_reads_goes_and_rounds_change_what_stays(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    network = small_vit(depth=2, num_heads=4)
    with torch.no_grad():
        for block in family_of(network).read(network):
            block.attention.wo[1] = 0
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    plans = []
    for rounds in (1, 3):
        problem = untrained(base, task, 0.6, tmp_path, shape="free")
        made = derive(problem, Config(rounds=rounds, calibration_images=16))
        assert (
            1
            - family_of(made.network)
            .geometry(made.network)
            .macs([b.dims for b in family_of(made.network).read(made.network)])
            / base.spec.macs
            > 0.55
        )
        plans.append(made.plan)
        for block in made.plan.blocks:
            assert block.attention is not None
            assert len(block.attention.heads) == 1 or 1 not in block.attention.heads
    kept = [[b.ffn.neurons.tolist() for b in plan.blocks if b.ffn is not None] for plan in plans]
    assert kept[0] != kept[1]


def test_rounds_are_counted() -> None:
    with pytest.raises(OptionError, match=r"nvit\.rounds=0 is less than 1"):
        Config(rounds=0)
