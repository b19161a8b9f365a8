"""Train low-rank updates instead of whole weights, which takes less memory (LoRA, Hu et al., 2022; Vulcan, Table 17).

Each linear layer of a block has W = W_0 + B A. W_0 [out, in] is frozen, A [r, in] starts at random, and B [out, r]
starts at zero. W_0 needs no gradient and no AdamW moments. The paper does not name the layers. Here they are all layers
of attention (qkv with one update for the three; proj) and of the FFN (fc1, fc2 and the gate if there is one), because
both constraints concern them. The paper also does not say how A is initialised and whether B A is scaled: A is drawn as
torch draws a linear layer's weight, and B A is not scaled.

Besides A and B, two things train: the biases of those layers, because the rows [W_1 b_1] and [W_Q b_Q] must be able to
collapse; and the classifier. Norms, LayerScale, positions, tokens and the patch embedding do not change.

A layer multiplies its inputs with W_0, A and B separately, so that W is not kept for the backward pass. Reading the
layer's `weight`, as `Network.read` does, computes W, differentiably.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from edgevit.network.network import Network


class Update(nn.Module):
    """Parametrize W_0 as W_0 + B A."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        bound = columns**-0.5
        drawn = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
        self.down = nn.Parameter(drawn.to(weight))  # A
        self.up = nn.Parameter(weight.new_zeros(rows, rank))  # B

    def forward(self, frozen: Tensor) -> Tensor:
        return torch.addmm(frozen, self.up, self.down)


class UpdatedLinear(nn.Linear):
    """A linear layer whose weight is parametrized by an `Update`."""

    def forward(self, input: Tensor) -> Tensor:
        parametrized: Any = self.parametrizations
        update = parametrized.weight[0]
        frozen = F.linear(input, parametrized.weight.original, self.bias)
        return frozen.add_(F.linear(F.linear(input, update.down), update.up))


def linear_layers(network: Network) -> list[nn.Linear]:
    """List the linear layers of all attentions and FFNs, in order."""
    branches = network.layers
    return [layer for pair in branches for branch in pair if branch for layer in (*branch.readers, branch.output)]


def smallest_side(network: Network) -> int:
    """Return the smallest side of the matrices of all attentions and FFNs: the rank of an update must be below it."""
    return min(min(layer.weight.shape) for layer in linear_layers(network))


@contextmanager
def low_rank_updates(network: Network, rank: int, seed: int) -> Iterator[None]:
    """Train only updates of this rank, biases and the classifier; with rank 0 train all weights.

    On exit each weight becomes W_0 + B A and the network has its plain layers again.
    """
    if rank == 0:
        yield
        return
    generator = torch.Generator().manual_seed(seed)
    layers = linear_layers(network)
    trained = [p for p in network.parameters() if p.requires_grad]
    network.requires_grad_(False)
    for head in network.ends.classifiers:
        head.requires_grad_(True)
    for layer in layers:
        if layer.bias is not None:
            layer.bias.requires_grad_(True)
        update = Update(layer.weight, rank, generator)
        layer.__class__ = UpdatedLinear  # torch then changes it to a class of which `weight` is a property
        register_parametrization(layer, "weight", update)
    try:
        yield
    finally:
        for layer in layers:
            remove_parametrizations(layer, "weight")
            layer.__class__ = nn.Linear
        for p in trained:
            p.requires_grad_(True)
