"""Choose the tokens over which sums are taken where there are more than enough: some patches, and every class token.

The patches of an image are many and alike; its class token is unique, and after the last attention the outputs depend
on it alone. Sums over every class token and one patch in `every`, weighted by `every`, equal those over all tokens on
average (docs/decisions/008-passes.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from edgevit.network.network import Network
from edgevit.network.output import Levels

ENOUGH_TOKENS = 25_000  # number of tokens that is enough for any sum
GROUPS = 2  # number of groups of images: what is fitted to one is judged on the others
# Weight of a token of padding in an image: real tokens attend to it, so what is fitted must not leave it to chance.
_PADDING = 0.1
_RUN = 8  # neighbouring images in one group, as neighbours in a listing are often alike


@dataclass(frozen=True)
class Thinning:
    """Which tokens of a batch are used."""

    every: int  # one patch in this number is used; 1: all patches
    tokens: int  # N, the number of tokens of an image
    prefix: int  # number of class, distillation and register tokens, which are the first of an image's tokens
    # Which tokens are real, not padding: `Network.real_tokens`; None: all are.
    real: Callable[[Tensor], Tensor | None] | None = None
    padding: float = 0.0  # the weight of padding

    def of(self, values: Tensor) -> Tensor:
        """The used tokens of a batch [B, N, d]: [T, d]."""
        flat = values.flatten(0, 1)
        return flat if self.every == 1 else flat[self._indices(len(values), flat.device)]

    def weights(self, values: Tensor, by_token: Tensor | None) -> Tensor | None:
        """The weight of each used token of a batch [B, N, d]: [T] in fp32; None: all alike.

        With `by_token` [N] it depends on the position, too.
        """
        images, device = len(values), values.device
        real = None if self.real is None else self.real(values)
        if self.every > 1:
            weight = torch.full((self.tokens,), float(self.every), device=device)
            weight[: self.prefix] = 1
            if by_token is not None:
                weight *= by_token.to(weight)
            weight = weight.repeat(images)[self._indices(images, device)]
        elif by_token is not None:
            weight = by_token.to(device).float().repeat(images)
        elif real is not None:
            weight = torch.ones(images * values.shape[1], device=device)
        else:
            return None
        if real is None:
            return weight
        return weight * self.of(real.unsqueeze(2)).squeeze(1).float().clamp_min(self.padding)

    def groups(self, tokens: Tensor) -> Tensor:
        """The group of images of each used token of a batch [B, N, d]: [T].

        Runs of neighbouring images alternate, so that groups have the same classes.
        """
        of_images = torch.arange(len(tokens), device=tokens.device) // _RUN % GROUPS
        return self.of(of_images[:, None, None].expand(-1, tokens.shape[1], 1)).squeeze(1)

    def _indices(self, images: int, device: torch.device) -> Tensor:
        positions = torch.arange(images * self.tokens, device=device)
        return positions[(positions % self.every == 0) | (positions % self.tokens < self.prefix)]


ALL = Thinning(1, 0, 0)


def every_token(network: Network) -> Thinning:
    """Use all tokens of a network; padding weighs little in images, and nothing in texts, where none attends to it."""
    padding = _PADDING if isinstance(network.output, Levels) else 0.0
    return replace(ALL, real=network.real_tokens if network.pads else None, padding=padding)


def thinnings(network: Network, images: int, per_neuron: int) -> list[Thinning]:
    """For each block: thin to at least `ENOUGH_TOKENS`, and `per_neuron` for each neuron of its stage's widest FFN.

    All positions of an image are used equally often: `every` has no factor in common with its number of tokens.
    """
    geometry, dims, every_one = network.geometry, network.dims, every_token(network)
    by_stage = {}
    for stage in {block.stage for block in dims}:
        tokens, widest = geometry.stages[stage].tokens, max(block.ffn for block in dims if block.stage == stage)
        every = max(images * tokens // max(ENOUGH_TOKENS, per_neuron * widest), 1)
        while gcd(every, tokens) > 1:
            every -= 1
        by_stage[stage] = replace(every_one, every=every, tokens=tokens, prefix=geometry.prefix)
    return [by_stage[block.stage] for block in dims]
