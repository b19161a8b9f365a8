"""Magnitude: the units with small weights go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.magnitude import Config, derive
from edgevit.data.task import open_task
from edgevit.errors import OptionError
from edgevit.network.model import describe


def test_neurons_that_were_made_small_are_the_first_to_go(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    blocks = network.read()
    small = torch.arange(0, blocks[0].dims.ffn, 2)
    with torch.no_grad():
        for block in blocks:
            block.ffn.w1[small] *= 1e-3
            block.ffn.w2[:, small] *= 1e-3
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    for rate, within in ((0.6, True), (0.3, False)):
        for block in derive(untrained(base, task, rate, tmp_path, shape="free"), Config()).plan.blocks:
            assert block.ffn is not None
            kept, large = set(block.ffn.neurons.tolist()), set(range(1, 256, 2))
            assert kept <= large if within else large <= kept


def test_an_order_is_a_number_above_zero() -> None:
    with pytest.raises(OptionError, match=r"magnitude\.order=0 is not a number above 0"):
        Config(order=0.0)
