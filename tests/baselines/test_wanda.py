"""Wanda: small weights, times the norm of what they are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.wanda import Config, derive, weighed
from edgevit.data.task import open_task
from edgevit.errors import OptionError
from edgevit.network.anatomy import Attention, Block, Ffn
from edgevit.network.model import describe


def test_a_unit_is_worth_its_weights_times_the_norm_of_what_they_are_given() -> None:
    one = torch.ones
    attention = Attention(2 * one(1, 2, 3), None, one(1, 2, 3), None, one(1, 2, 3), None, -4 * one(1, 3, 2), None)
    ffn = Ffn(one(2, 3), None, torch.tensor([[1.0, -2.0], [0.0, 5.0], [0.0, 1.0]]), None)
    given, attended = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1.0, 10.0]).double()
    found = weighed(Block(attention, ffn), given, attended, torch.tensor([7.0, 0.5]).double())
    assert found["qk"].tolist() == [[18.0, 18.0]] and found["vo"].tolist() == [[12.0, 120.0]]
    assert found["heads"].tolist() == [132.0] and found["ffn"].tolist() == [7.0, 4.0]


def test_silent_neurons_go_though_their_weights_are_large(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    silent = torch.arange(0, 256, 2)
    with torch.no_grad():
        for block in network.read():
            block.ffn.w1[silent] = 0
            block.ffn.b1[silent] = 0
            block.ffn.w2[:, silent] *= 9
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    made = derive(untrained(base, task, 0.6, tmp_path, shape="free"), Config(calibration_images=16))
    for block in made.plan.blocks:
        assert block.ffn is not None and not set(block.ffn.neurons.tolist()) & set(silent.tolist())
    with pytest.raises(OptionError, match=r"wanda\.calibration_images 0 is not in"):
        Config(calibration_images=0)
