"""Which directions of the tokens the answers feel."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive.algebra.embedding import principal
from edgevit.derive.measure.sensitivity import FLOOR, TokenSquares, feel
from edgevit.derive.measure.statistics import add_outer, symmetric
from edgevit.errors import DataError
from edgevit.models.families import family_of
from edgevit.train.passes import Observer, Passes


def enough_images(network: nn.Module) -> int:
    """The fewest images whose tokens determine every direction of the embedding."""
    geometry = family_of(network).geometry(network)
    return ceil(geometry.embed / geometry.tokens)


# Times the fewest. On 24 finer classes and on five kinds of clothes, three seeds each, a third of the embedding loses
# up to 17 times as much on other images with the fewest as with 512, and up to 1.2 times with so many (lab log).
STABLE = 32


def stable_images(network: nn.Module) -> int:
    """So many that more of them change what is lost by a narrower embedding no further."""
    return STABLE * enough_images(network)


def _normalised(norm: Any, tokens: Tensor) -> Tensor:
    """What a LayerNorm makes of tokens [B, N, d], or of pooled ones [B, d], before its own weight and bias."""
    seen = F.layer_norm(tokens.detach().float(), tokens.shape[-1:], eps=norm.eps)
    return seen.unsqueeze(1) if seen.ndim == 2 else seen


def worth_to_norms(network: nn.Module) -> TokenSquares:
    """Takes how much the answers feel what each norm gives them of each token, before its own weight and bias."""
    norms: list[Any] = list(family_of(network).token_norms(network))
    return TokenSquares(norms, [None if norm.weight is None else norm.weight.detach() for norm in norms])


def token_weights(
    network: nn.Module, images: Split, columns: Sequence[int], passes: Passes, *, seed: int = 0
) -> list[Tensor]:
    """How much the answers feel what each norm gives them of each token: [N] per norm, fp64, on the CPU.

    The mean square of the gradient in the normalised token, of zeta . logits as in `sensitivity`.

    Args:
        columns: for each target class, its column in the logits: answers are among these.
    """
    worth = worth_to_norms(network)
    feel(network, images, columns, passes, [worth], seed=seed, stage="worth of tokens to norms")
    return worth.means(len(images), passes)


class TokenMoment:
    """The second moment of the tokens as norms see them, of a pass that it observes.

    Args:
        weights: as `token_weights` gives them; every token keeps a tenth of its norm's mean.
    """

    def __init__(self, network: nn.Module, weights: Sequence[Tensor], passes: Passes) -> None:
        family, device = family_of(network), passes.compute.device
        width = family.geometry(network).embed
        self.norms, self.passes = family.token_norms(network), passes
        self.floored = [((1 - FLOOR) * w + FLOOR * w.mean()).float().to(device) for w in weights]
        self.total = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.observer: Observer = (self.norms, self._see)

    def _see(self, i: int, given: Any, _: Tensor) -> None:
        seen = _normalised(self.norms[i], given[0])
        add_outer(self.total, seen.flatten(0, 1), self.floored[i].repeat(len(seen)))

    def directions(self) -> Tensor:
        """All directions of the tokens [d, d - 1], the most felt first: `encoder` takes those it needs.

        Raises:
            DataError: the tokens are not finite.
        """
        moment = symmetric(self.passes.compute.sum(self.total)).cpu()
        if not torch.isfinite(moment).all():
            raise DataError("the tokens are not finite; check the base's weights, and --mean and --std")
        return principal(moment)


def token_directions(network: nn.Module, images: Split, weights: Sequence[Tensor], passes: Passes) -> Tensor:
    """The directions of `TokenMoment`, of a pass over these images.

    Raises:
        DataError: the tokens are not finite.
    """
    moment = TokenMoment(network, weights, passes)
    passes.run(network, images, lambda *_: None, [moment.observer], stage="directions of tokens")
    return moment.directions()
