"""Measure the directions of the tokens to which the outputs are sensitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.sensitivity import FLOOR, TokenGradients, observe_gradients
from edgevit.derivation.measure.statistics import add_outer, from_triangle, symmetric, triangle
from edgevit.derivation.measure.thinning import ALL, GROUPS, Thinning
from edgevit.derivation.solve.embedding import encoder, judged_decoder, principal, refined
from edgevit.errors import DataError
from edgevit.network.anatomy import Decoder
from edgevit.network.network import Network
from edgevit.train.passes import Observer, Passes


def enough_images(network: Network) -> int:
    """The fewest images whose tokens determine every direction of the embedding."""
    geometry = network.geometry
    return ceil(geometry.embed / geometry.tokens)


# Times the fewest. On 24 finer classes and on five kinds of clothes, three seeds each, a third of the embedding loses
# up to 17 times as much on other images with the fewest as with 512, and up to 1.2 times with so many.
_STABLE = 32
# An embedding of a third and less loses half as much with refined directions; a wider one loses next to nothing.
_FEW = 3


def stable_images(network: Network) -> int:
    """How many images make the loss of a narrower embedding stable."""
    return _STABLE * enough_images(network)


def _normalised(norm: Any, tokens: Tensor) -> Tensor:
    """Tokens [..., d] normalised by a LayerNorm, before its weight and bias."""
    return F.layer_norm(tokens.detach().float(), tokens.shape[-1:], eps=norm.eps)


def norm_gradients(network: Network) -> TokenGradients:
    """Observe the gradients of each norm's output, before its weight and bias, and of the tokens that a head reads."""
    norms: list[Any] = list(network.token_norms)
    gains = [None if norm.weight is None else norm.weight.detach() for norm in norms]
    read = network.ends.read
    return TokenGradients(network, [*norms, *read], gains + [None] * len(read))


def token_weights(network: Network, images: Split, passes: Passes, *, seed: int = 0) -> list[Tensor]:
    """The sensitivity of each norm's output at each token: [N] per norm, fp64, on the CPU.

    It is the mean square of the gradient in the normalised token, of zeta . logits as in `sensitivity`. Those of the
    tokens that a head reads follow.
    """
    gradients = norm_gradients(network)
    observe_gradients(network, images, passes, [gradients], seed=seed, stage="worth of tokens to norms")
    return gradients.means(len(images), passes)


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the normalised tokens: they determine a narrower embedding and its decoders."""

    directions: Tensor  # [d, d - 1] fp64, the most important first: `encoder` takes as many as it needs
    # [norms, groups, (d + 1) (d + 2) / 2] fp32: the triangle of E [n 1]^T [n 1] of each norm, in parts by groups of
    # images whose mean it is; then those of tokens x that a head reads, with x in place of n.
    moments: Tensor
    worth: Tensor  # [norms] fp64, as many as `moments`: the sensitivity of each norm's output, over all tokens

    def tensors(self) -> dict[str, Tensor]:
        return {"directions": self.directions, "token_moments": self.moments, "token_worth": self.worth}

    @classmethod
    def pop_from(cls, tensors: dict[str, Tensor]) -> TokenStatistics | None:
        """Pop the entries that `tensors` wrote; None: one is missing."""
        popped = [tensors.pop(name, None) for name in ("directions", "token_moments", "token_worth")]
        present = [tensor for tensor in popped if tensor is not None]
        return cls(*present) if len(present) == len(popped) else None

    def encoder(self, width: int) -> Tensor:
        """The matrix [d', d] for d' = `width`: of the largest directions, or of refined ones where these are few."""
        directions = self.directions
        if _FEW * width <= len(directions):
            whole = [from_triangle(groups.mean(0)) for groups in self.moments]
            directions = refined(directions, width, whole, self.worth.tolist())
        return encoder(directions, width)

    def decoders(self, encode: Tensor, read: int = 0) -> tuple[Decoder, ...]:
        """The decoder of every norm, for tokens that become `encode` [d', d] times what they were.

        Those of the last `read` moments are for tokens that no norm of d' channels rescales.
        """
        norms = len(self.moments) - read
        return tuple(
            judged_decoder(encode, [from_triangle(m).float() for m in groups], rescaled=i < norms)
            for i, groups in enumerate(self.moments)
        )


class TokenMoments:
    """Second moments of the normalised tokens, and of tokens that a head reads, summed over a pass that they observe.

    Args:
        weights: from `token_weights`; every token keeps a tenth of its norm's mean.
        thinning: which tokens are observed.
    """

    def __init__(self, network: Network, weights: Sequence[Tensor], passes: Passes, thinning: Thinning = ALL) -> None:
        device = passes.compute.device
        side = network.geometry.embed + 1
        self.norms, self.read, self.passes, self.thinning = network.token_norms, network.ends.read, passes, thinning
        self.floored = [((1 - FLOOR) * w + FLOOR * w.mean()).float().to(device) for w in weights]
        self.sums = [torch.zeros(GROUPS, side, side, dtype=torch.float64, device=device) for _ in self.floored]
        self.observer: Observer = ([*self.norms, *self.read], self._observe)

    def _observe(self, i: int, inputs: Any, output: Tensor) -> None:
        tokens_in = inputs[0] if i < len(self.norms) else output
        pooled = tokens_in.ndim == 2  # one token of each image
        thinning = ALL if pooled else self.thinning
        values = tokens_in if pooled else thinning.of(tokens_in)
        values = _normalised(self.norms[i], values) if i < len(self.norms) else values.detach().float()
        tokens = torch.cat([values, torch.ones_like(values[:, :1])], dim=1)
        groups = ALL.groups(tokens_in.unsqueeze(1)) if pooled else thinning.groups(tokens_in)
        weights = thinning.weights(tokens_in.unsqueeze(1) if pooled else tokens_in, self.floored[i])
        for group, sums in enumerate(self.sums[i]):
            rows = groups == group
            add_outer(sums, tokens[rows], None if weights is None else weights[rows])

    def statistics(self) -> TokenStatistics:
        """The statistics of the whole pass.

        Raises:
            DataError: the tokens are not finite.
        """
        total, triangles, worth = torch.zeros(()), [], []
        for groups in self.sums:
            of_groups = [symmetric(sums).cpu() for sums in self.passes.compute.sum(groups)]
            moment = torch.stack(of_groups).sum(0)
            if not torch.isfinite(moment).all():
                raise DataError("the tokens are not finite; check the base's weights, and --mean and --std")
            total = total + moment[:-1, :-1]
            worth.append(moment[-1, -1])
            share = (moment[-1, -1] / GROUPS).clamp_min(torch.finfo(torch.float64).tiny)
            triangles.append(torch.stack([triangle(m / share) for m in of_groups]))
        return TokenStatistics(principal(total), torch.stack(triangles), torch.stack(worth))


def measure_tokens(network: Network, images: Split, weights: Sequence[Tensor], passes: Passes) -> TokenStatistics:
    """Measure the statistics of these images' tokens.

    Raises:
        DataError: the tokens are not finite.
    """
    moments = TokenMoments(network, weights, passes)
    passes.run(network, images, lambda *_: None, [moments.observer], stage="directions of tokens")
    return moments.statistics()
