"""A Swin in another basis of each stage: exact at full width, and below it for tokens that lie in few directions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from family_examples import SWIN
from small_models import encoders, lie_in_few_directions, some_directions
from torch import Tensor

from edgevit.derivation.solve.embedding import encoder
from edgevit.network.network import Network

ODD = {"img_size": 36, "depths": [2, 2], "window_size": 3}  # grids of 9, merged to 5: shifted, and padded in one stage


@torch.no_grad()
def shaken(network: Network) -> Network:
    """The network in fp64, with norms and biases in which mistakes show."""
    torch.manual_seed(4)
    for parameter in network.double().parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def images(network: Network) -> Tensor:
    return torch.randn(2, *network.input_size, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("args", [{"depths": [2, 2], "window_size": 4}, ODD], ids=["shifted", "padded"])
@torch.no_grad()
def test_a_swin_of_few_directions_loses_nothing_when_it_is_narrowed(small_vit: Any, args: dict[str, Any]) -> None:
    network = shaken(small_vit(SWIN, **args))
    lie_in_few_directions(network, 48)
    expected = network(images(network))
    narrower = network.with_embedding(encoders(network, 48, directions=some_directions)).eval()
    assert narrower.geometry.bases == (24, 24, 48)
    torch.testing.assert_close(narrower(images(network)), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    bases = network.geometry.bases
    pairs = zip(bases, narrower.geometry.bases, strict=True)
    without_mean = network.with_embedding([encoder(some_directions(old), new) for old, new in pairs]).eval()
    assert (without_mean(images(network)) - expected).abs().max() > 1e-3, "merged tokens differ by their means"


@torch.no_grad()
def test_at_full_width_windows_and_merged_tokens_that_are_padded_are_exact(small_vit: Any) -> None:
    network = shaken(small_vit(SWIN, **ODD))
    assert network.module.layers[1].blocks[0].attn.filled is not None
    expected = network(images(network))
    turned = network.with_embedding(encoders(network, 128, directions=some_directions)).eval()
    torch.testing.assert_close(turned(images(network)), expected, rtol=1e-8, atol=1e-8)
