"""Low-rank updates in place of whole weights, for memory (LoRA, Hu et al., 2022; Vulcan, Table 17).

The linear layers of every block have W = W_0 + B A: W_0 [out, in] is frozen, A [r, in] is drawn at random, and B
[out, r] is zero at the start. There is no gradient of W_0, and no moment of AdamW. The paper names no layers: here they
are all of attention (qkv, one update for the three; proj) and FFN (fc1 and fc2, and the gate where there is one), as
both constraints are about them. A is drawn as the default layer of torch is, and B A is not scaled, which the paper
does not say either.

Beside A and B these train: the biases of those layers, without which neither rows [W_1 b_1] nor [W_Q b_Q] can collapse;
and the classifier, as it is what tells the classes apart. Norms, LayerScale, positions, tokens and the patch embedding
stay as they are.

A layer multiplies with W_0, A and B each by itself, so that no W is held for the backward pass; who reads its `weight`,
as a family's `read` does, has W itself, differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from edgevit.network.families import family_of


class Update(nn.Module):
    """W_0 -> W_0 + B A, as a parametrization of torch's."""

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
        of: Any = self.parametrizations
        update = of.weight[0]
        frozen = F.linear(input, of.weight.original, self.bias)
        return frozen.add_(F.linear(F.linear(input, update.down), update.up))


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Those of all attentions and FFNs, in order."""
    branches = family_of(network).branches(network)
    return [layer for pair in branches for of in pair if of is not None for layer in (*of.readers, of.output)]


def smallest_side(network: nn.Module) -> int:
    """Of the matrices of all attentions and FFNs: an update of this rank would be no smaller than any other."""
    return min(min(layer.weight.shape) for layer in linear_layers(network))


@contextmanager
def low_rank_updates(network: nn.Module, rank: int, seed: int) -> Iterator[None]:
    """Let nothing but updates of this rank, biases and the classifier train while this lasts; 0: all that did.

    In the end the weights hold their updates, and the network is as any other.
    """
    if rank == 0:
        yield
        return
    generator = torch.Generator().manual_seed(seed)
    layers = linear_layers(network)
    trained = [p for p in network.parameters() if p.requires_grad]
    network.requires_grad_(False)
    for head in family_of(network).classifiers(network):
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
