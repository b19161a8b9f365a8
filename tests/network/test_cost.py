"""Cost as a function of the dimensions: the published figures, and the network's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from family_examples import images, slimmed
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.families import family_like
from edgevit.network.families.vit.slim import SlimAttention
from edgevit.network.network import Network

SWINS = {"tiny": 4.5e9, "small": 8.7e9, "base": 15.4e9}  # MACs as published, of 224 px


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.quick("deit_small*")
@pytest.mark.parametrize(
    ("name", "macs"),
    [("deit_base_patch16_224", 17.57), ("deit_small_patch16_224", 4.60), ("deit_tiny_patch16_224", 1.25)],
)
def test_macs_are_the_published_ones(name: str, macs: float) -> None:
    with torch.device("meta"):
        network = Network(timm.create_model(name))
    geometry: Geometry = network.geometry
    dims = list(network.dims)
    assert round(geometry.macs(dims) / 1e9, 2) == macs
    assert geometry.params(dims) == numel(network)


def test_macs_are_those_of_the_matrix_products(small_vit: Callable[..., nn.Module]) -> None:
    """Count every linear layer and both products of attention with hooks on a slim model."""
    network = slimmed(small_vit(reg_tokens=2), BlockDims(2, 24, 16, 40))
    counted = 0

    def count(module: Any, inputs: Any, output: torch.Tensor) -> None:
        nonlocal counted
        if isinstance(module, nn.Conv2d):
            counted += output.numel() * module.weight[0].numel()
        elif isinstance(module, nn.Linear):
            counted += output.numel() * module.in_features
        else:
            n, heads = inputs[0].shape[1], module.num_heads
            counted += n * n * heads * (module.qk_dim + module.vo_dim)

    kinds = (nn.Conv2d, nn.Linear, SlimAttention)
    for module in network.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(count)
    network(images()[:1])
    tokens, depth, embed = 16 + 3, 2, 64
    norms = (2 * depth * tokens + 1) * embed  # the formula's terms that are no matrix products
    geometry = network.geometry
    assert geometry.macs([BlockDims(2, 24, 16, 40)] * 2) == counted + norms


def test_a_budget_of_parameters_does_not_count_the_norms_of_blocks_that_are_dropped(small_vit: Any) -> None:
    network = small_vit(init_values=0.1)
    geometry, dims = network.geometry, list(network.dims)
    network.keep_blocks([1])
    assert geometry.params(dims[1:]) == sum(p.numel() for p in network.parameters())


# -- stages and windows: timm's Swin ----------------------------------------------------------------------------------


def described(name: str, **args: Any) -> tuple[Any, Network]:
    with torch.device("meta"):
        model = timm.create_model(f"swin_{name}_patch4_window7_224", **args).eval()
    return model, Network(family_like(model).interchange.adopted(copy.deepcopy(model)))


def counted(model: Any) -> int:
    """The MACs of all products of one image, by torch's counter: of linear layers, convolutions and attention."""
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        model(torch.empty(1, 3, *model.patch_embed.img_size))
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize("name", SWINS)
def test_macs_and_parameters_are_those_that_a_counter_finds(name: str) -> None:
    model, network = described(name)
    geometry, blocks = network.geometry, network.dims
    norms = sum(placed.stage.embed * placed.tokens * len(placed.dims.sites) for placed in geometry.placed(blocks))
    assert geometry.macs(blocks) == counted(model) + norms + geometry.embed
    assert geometry.macs(blocks) == pytest.approx(SWINS[name], rel=0.02)
    assert geometry.params(blocks) == sum(p.numel() for p in model.parameters())


def test_places_without_a_token_count_in_windows_and_nowhere_else() -> None:
    _, network = described("tiny", img_size=256, depths=[1, 2], num_heads=[3, 6])
    geometry, blocks = network.geometry, network.dims
    assert [(stage.tokens, stage.pairs) for stage in geometry.stages] == [(64**2, 70**2 * 49), (32**2, 35**2 * 49)]
    norms = sum(placed.stage.embed * placed.tokens * len(placed.dims.sites) for placed in geometry.placed(blocks))
    assert geometry.macs(blocks) == counted(network.to("meta").module) + norms + geometry.embed


def test_a_narrower_swin_costs_what_timm_has_at_that_width_and_a_layer_behind_the_norm_of_its_patches() -> None:
    _, network = described("tiny")
    model, usual = described("tiny", embed_dim=48, head_dim=32, mlp_ratio=8.0)
    geometry, blocks = network.geometry_at(384), network.dims
    assert blocks == usual.dims and [stage.embed for stage in geometry.stages] == [48, 96, 192, 384]
    assert geometry.macs(blocks) == usual.geometry.macs(blocks) + 3136 * 48**2
    params = sum(p.numel() for p in model.parameters())
    assert geometry.params(blocks) == params + 48**2 + 48 + 96 + 192 + 384, "its linear layers have biases, too"
    norms = sum(placed.stage.embed * placed.tokens * len(placed.dims.sites) for placed in geometry.placed(blocks))
    assert usual.geometry.macs(blocks) == counted(model) + norms + 384


def test_a_stage_has_its_own_width_tokens_and_window() -> None:
    _, network = described("tiny")
    stages = network.geometry.stages
    assert [(stage.embed, stage.tokens, stage.pairs // stage.tokens) for stage in stages] == [
        (96, 3136, 49), (192, 784, 49), (384, 196, 49), (768, 49, 49),
    ]  # fmt: skip
    assert [dims.stage for dims in network.dims] == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]
    assert [(dims.heads, dims.qk, dims.vo, dims.ffn) for dims in network.dims[::2]] == [
        (3, 32, 32, 384), (6, 32, 32, 768), *[(12, 32, 32, 1536)] * 3, (24, 32, 32, 3072),
    ]  # fmt: skip
    assert network.geometry.fixed_embed is None and "channels of their own" in str(network.geometry.fixed_channels)


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
