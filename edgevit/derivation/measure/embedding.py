"""Which directions of the tokens the answers feel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.sensitivity import FLOOR, TokenSquares, feel
from edgevit.derivation.measure.statistics import add_outer, from_triangle, symmetric, triangle
from edgevit.derivation.measure.thinning import ALL, Thinning
from edgevit.derivation.solve.embedding import encoder, fitted_decoder, principal, refined
from edgevit.errors import DataError
from edgevit.network.anatomy import Decoder
from edgevit.network.families import family_of
from edgevit.train.passes import Observer, Passes


def enough_images(network: nn.Module) -> int:
    """The fewest images whose tokens determine every direction of the embedding."""
    geometry = family_of(network).geometry(network)
    return ceil(geometry.embed / geometry.tokens)


# Times the fewest. On 24 finer classes and on five kinds of clothes, three seeds each, a third of the embedding loses
# up to 17 times as much on other images with the fewest as with 512, and up to 1.2 times with so many (lab log).
STABLE = 32
# An embedding of a third and less loses half as much with refined directions; a wider one loses next to nothing.
FEW = 3


def stable_images(network: nn.Module) -> int:
    """How many images it takes until more of them no longer change what a narrower embedding loses."""
    return STABLE * enough_images(network)


def _normalised(norm: Any, tokens: Tensor) -> Tensor:
    """What a LayerNorm makes of tokens [..., d], before its own weight and bias."""
    return F.layer_norm(tokens.detach().float(), tokens.shape[-1:], eps=norm.eps)


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


@dataclass(frozen=True)
class SeenTokens:
    """What is known of the tokens as norms see them: which directions a narrower embedding keeps, and the way back."""

    directions: Tensor  # [d, d - 1] fp64, the most felt first: `encoder` takes those it needs
    moments: Tensor  # [norms, (d + 1) (d + 2) / 2] fp32: the triangle of E [n 1]^T [n 1] of each norm
    worth: Tensor  # [norms] fp64: how much the answers feel what each gives, in all tokens together

    def tensors(self) -> dict[str, Tensor]:
        return {"directions": self.directions, "token_moments": self.moments, "token_worth": self.worth}

    @classmethod
    def taken_from(cls, tensors: dict[str, Tensor]) -> SeenTokens | None:
        """Take what `tensors` gave out of these; None: it is not among them."""
        found = [tensors.pop(name, None) for name in ("directions", "token_moments", "token_worth")]
        there = [tensor for tensor in found if tensor is not None]
        return cls(*there) if len(there) == len(found) else None

    def encoder(self, width: int) -> Tensor:
        """The matrix [d', d] for d' = `width`: of the largest directions, or where these are few of refined ones."""
        directions = self.directions
        if FEW * width <= len(directions):
            directions = refined(directions, width, list(map(from_triangle, self.moments)), self.worth.tolist())
        return encoder(directions, width)

    def decoders(self, encode: Tensor) -> tuple[Decoder, ...]:
        """The decoder of every norm, for tokens that become `encode` [d', d] times what they were."""
        return tuple(fitted_decoder(encode, from_triangle(held).float()) for held in self.moments)


class TokenMoments:
    """The second moments of the tokens as norms see them, of a pass that it observes.

    Args:
        weights: as `token_weights` gives them; every token keeps a tenth of its norm's mean.
        thinning: which tokens are observed.
    """

    def __init__(self, network: nn.Module, weights: Sequence[Tensor], passes: Passes, thinning: Thinning = ALL) -> None:
        family, device = family_of(network), passes.compute.device
        side = family.geometry(network).embed + 1
        self.norms, self.passes, self.thinning = family.token_norms(network), passes, thinning
        self.floored = [((1 - FLOOR) * w + FLOOR * w.mean()).float().to(device) for w in weights]
        self.sums = [torch.zeros(side, side, dtype=torch.float64, device=device) for _ in self.norms]
        self.observer: Observer = (self.norms, self._see)

    def _see(self, i: int, given: Any, _: Tensor) -> None:
        images = len(given[0])
        pooled = given[0].ndim == 2  # one token of each image
        thinning = ALL if pooled else self.thinning
        seen = _normalised(self.norms[i], given[0] if pooled else thinning.of(given[0]))
        tokens = torch.cat([seen, torch.ones_like(seen[:, :1])], dim=1)
        add_outer(self.sums[i], tokens, thinning.weights(images, self.floored[i], seen.device))

    def seen(self) -> SeenTokens:
        """What the pass has seen.

        Raises:
            DataError: the tokens are not finite.
        """
        total, held, worth = torch.zeros(()), [], []
        for sums in self.sums:
            moment = symmetric(self.passes.compute.sum(sums)).cpu()
            if not torch.isfinite(moment).all():
                raise DataError("the tokens are not finite; check the base's weights, and --mean and --std")
            total = total + moment[:-1, :-1]
            worth.append(moment[-1, -1])
            held.append(triangle(moment / moment[-1, -1].clamp_min(torch.finfo(torch.float64).tiny)))
        return SeenTokens(principal(total), torch.stack(held), torch.stack(worth))


def see_tokens(network: nn.Module, images: Split, weights: Sequence[Tensor], passes: Passes) -> SeenTokens:
    """What `TokenMoments` sees of these images.

    Raises:
        DataError: the tokens are not finite.
    """
    moments = TokenMoments(network, weights, passes)
    passes.run(network, images, lambda *_: None, [moments.observer], stage="directions of tokens")
    return moments.seen()
