"""Which tokens sums are taken over where there are more than enough: some of the patches, and every class token.

Patches of an image are many and alike, its class token is one of a kind, and behind the last attention nothing else is
felt. Of every class token and one patch in `every`, weighted by `every`, the sums are those of all tokens on average
(docs/decisions/012-cheaper-passes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn

from edgevit.network.families import family_of

ENOUGH_TOKENS = 25_000  # for any sum


@dataclass(frozen=True)
class Thinning:
    every: int  # one patch in so many is taken; 1: all
    tokens: int  # of an image, N
    prefix: int  # of these, the first: class, distillation and register tokens

    def of(self, values: Tensor) -> Tensor:
        """The tokens taken of a batch [B, N, d]: [T, d]."""
        flat = values.flatten(0, 1)
        return flat if self.every == 1 else flat[self._taken(len(values), flat.device)]

    def weights(self, images: int, by_token: Tensor | None, device: torch.device) -> Tensor | None:
        """What each of them counts: [T] in fp32, by its place [N] where that is given; None: all alike."""
        if self.every == 1:
            return None if by_token is None else by_token.to(device).float().repeat(images)
        weight = torch.full((self.tokens,), float(self.every), device=device)
        weight[: self.prefix] = 1
        if by_token is not None:
            weight *= by_token.to(weight)
        return weight.repeat(images)[self._taken(images, device)]

    def _taken(self, images: int, device: torch.device) -> Tensor:
        place = torch.arange(images * self.tokens, device=device)
        return place[(place % self.every == 0) | (place % self.tokens < self.prefix)]


ALL = Thinning(1, 0, 0)


def thinning(network: nn.Module, images: int, per_neuron: int) -> Thinning:
    """One that leaves at least `ENOUGH_TOKENS`, and so many for each neuron of the widest FFN.

    All places of an image are taken alike: `every` has no factor in common with its tokens.
    """
    family = family_of(network)
    geometry = family.geometry(network)
    tokens = geometry.tokens
    widest = max(block.dims.ffn for block in family.read(network))
    every = max(images * tokens // max(ENOUGH_TOKENS, per_neuron * widest), 1)
    while gcd(every, tokens) > 1:
        every -= 1
    return Thinning(every, tokens, tokens - geometry.patches)
