"""Cost as a function of the dimensions: the published figures, and the network's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from family_examples import images, slimmed
from torch import nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.families.vit.slim import SlimAttention
from edgevit.network.network import Network


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


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
