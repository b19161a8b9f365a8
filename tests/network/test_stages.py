"""A network of stages and windows: timm's Swin, described by `swin_family`, costs what counters of timm's own say."""

from __future__ import annotations

from typing import Any, cast

import pytest
import swin_family
import timm
import torch
from swin_family import SwinTransformer
from torch.utils.flop_counter import FlopCounterMode

from edgevit.network.families import Family
from edgevit.network.network import Network

NAMES = {"tiny": 4.5e9, "small": 8.7e9, "base": 15.4e9}  # MACs as published, of 224 px


def described(name: str) -> tuple[SwinTransformer, Network]:
    with torch.device("meta"):
        model = timm.create_model(f"swin_{name}_patch4_window7_224").eval()
    return model, Network(model, cast(Family, swin_family))


def counted(model: Any) -> int:
    """The MACs of all products of one image, by torch's counter: of linear layers, convolutions and attention."""
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        model(torch.empty(1, *model.default_cfg["input_size"]))
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize("name", NAMES)
def test_macs_and_parameters_are_those_that_a_counter_finds(name: str) -> None:
    model, network = described(name)
    geometry, blocks = network.geometry, network.dims
    norms = sum(placed.stage.embed * placed.tokens * len(placed.dims.sites) for placed in geometry.placed(blocks))
    assert geometry.macs(blocks) == counted(model) + norms + geometry.embed
    assert geometry.macs(blocks) == pytest.approx(NAMES[name], rel=0.02)
    assert geometry.params(blocks) == sum(p.numel() for p in model.parameters())


def test_a_stage_has_its_own_width_tokens_and_window() -> None:
    _, network = described("tiny")
    stages = network.geometry.stages
    assert [(stage.embed, stage.tokens, stage.window) for stage in stages] == [
        (96, 3136, 49), (192, 784, 49), (384, 196, 49), (768, 49, 49),
    ]  # fmt: skip
    assert [dims.stage for dims in network.dims] == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]
    assert [(dims.heads, dims.qk, dims.vo, dims.ffn) for dims in network.dims[::2]] == [
        (3, 32, 32, 384), (6, 32, 32, 768), *[(12, 32, 32, 1536)] * 3, (24, 32, 32, 3072),
    ]  # fmt: skip
    assert network.geometry.fixed_embed is not None


def test_a_unit_costs_what_its_stage_says() -> None:
    """Vulcan, Eq. 30: a dimension of a head costs 2 N d + N w in windows of w tokens, a neuron 2 N d."""
    _, network = described("tiny")
    last = network.geometry.placed(network.dims)[-1]
    n, d, w = 49, 768, 49
    assert last.unit_cost("qk", "macs") == last.unit_cost("vo", "macs") == 24 * (2 * n * d + n * w)
    assert last.unit_cost("ffn", "macs") == 2 * n * d
    assert last.unit_cost("heads", "params") == 64 * (2 * d) + 32 * 3 + 13 * 13


def test_a_block_can_be_removed_from_any_stage() -> None:
    _, network = described("tiny")
    geometry, blocks = network.geometry, list(network.dims)
    for block in (1, 3, 11):
        without = geometry.macs(blocks[:block] + blocks[block + 1 :])
        assert without == geometry.macs(blocks) - geometry.placed(blocks)[block].cost("macs")
