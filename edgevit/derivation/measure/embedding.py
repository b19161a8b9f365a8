"""Measure the directions of the tokens to which the outputs are sensitive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
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
from edgevit.network.anatomy import Decoder, side_by_side
from edgevit.network.network import Network
from edgevit.train.passes import Observer, Passes


def enough_images(network: Network) -> int:
    """The fewest images whose tokens determine every direction of the embedding."""
    return max(ceil(stage.embed / stage.tokens) for stage in network.geometry.stages)


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
    norms: list[Any] = [norm.module for norm in network.token_norms]
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

    # For each basis (`Geometry.bases`) [d, d - 1] fp64, the most important first: `encoder` takes as many as it needs.
    directions: tuple[Tensor, ...]
    # For each norm [groups, (d + 1) (d + 2) / 2] fp32: the triangle of E [n 1]^T [n 1], in parts by groups of images
    # whose mean it is; then those of tokens x that a head reads, with x in place of n. d is the width that it reads.
    moments: tuple[Tensor, ...]
    worth: Tensor  # [norms] fp64, as many as `moments`: the sensitivity of each norm's output, over all tokens
    # [norms, 2] int64: the number of the basis, and how many tokens it reads side by side; 0: no norm reads them.
    places: Tensor

    def tensors(self) -> dict[str, Tensor]:
        of_bases = {f"directions.{i}": tensor for i, tensor in enumerate(self.directions)}
        of_norms = {f"token_moments.{i}": tensor for i, tensor in enumerate(self.moments)}
        return {**of_bases, **of_norms, "token_worth": self.worth, "token_places": self.places}

    @classmethod
    def pop_from(cls, tensors: dict[str, Tensor]) -> TokenStatistics | None:
        """Pop the entries that `tensors` wrote; None: there are none."""
        if "token_places" not in tensors:
            return None
        places, worth = tensors.pop("token_places"), tensors.pop("token_worth")
        moments = tuple(tensors.pop(f"token_moments.{i}") for i in range(len(places)))
        directions = tuple(tensors.pop(f"directions.{i}") for i in range(1 + int(places[:, 0].max())))
        return cls(directions, moments, worth, places)

    def encoders(self, width: int, *, fitted: bool = True) -> tuple[Tensor, ...]:
        """The matrices [d', d] of all bases, for d' = `width` in the last one.

        They are of the largest directions, or where these are few and decoders are `fitted`, of refined ones.
        """
        widths = [width * len(directions) // len(self.directions[-1]) for directions in self.directions]
        return tuple(self._encoder(basis, width, fitted) for basis, width in enumerate(widths))

    def _encoder(self, basis: int, width: int, fitted: bool) -> Tensor:
        directions = self.directions[basis]
        if fitted and _FEW * width <= len(directions):
            norms = [i for i, place in enumerate(self.places[:, 0].tolist()) if place == basis]
            whole = [_by_token(from_triangle(self.moments[i].mean(0)), len(directions)) for i in norms]
            directions = refined(directions, width, whole, self.worth[norms].tolist())
        return encoder(directions, width, mean=len(self.directions) > 1)

    def decoders(self, encoders: Sequence[Tensor]) -> tuple[Decoder, ...]:
        """The decoder of every norm, and of what a head reads, for tokens in the bases of these encoders."""
        decoders = []
        for (basis, joined), groups in zip(self.places.tolist(), self.moments, strict=True):
            encode = side_by_side(encoders[basis], max(joined, 1))
            moments = [from_triangle(m).float() for m in groups]
            decoders.append(judged_decoder(encode, moments, rescaled=joined > 0))
        return tuple(decoders)


def _by_token(moment: Tensor, width: int) -> Tensor:
    """The moment [d + 1, d + 1] of single tokens without their mean, from that of tokens side by side."""
    joined = len(moment) // width
    if joined == 1:
        return moment
    total = moment.new_zeros(width + 1, width + 1)
    centre = torch.eye(width + 1, dtype=moment.dtype)
    centre[:-1, :-1] -= 1 / width
    for start in range(0, joined * width, width):
        of_token = [*range(start, start + width), -1]
        total += moment[of_token][:, of_token]
    mean: Tensor = centre @ (total / joined) @ centre
    return mean


class TokenMoments:
    """Second moments of the normalised tokens, and of tokens that a head reads, summed over a pass that they observe.

    Args:
        weights: from `token_weights`; every token keeps a tenth of its norm's mean.
        thinnings: which tokens of each stage are observed; all of a stage that is missing.
    """

    def __init__(
        self,
        network: Network,
        weights: Sequence[Tensor],
        passes: Passes,
        thinnings: Mapping[int, Thinning] = MappingProxyType({}),
    ) -> None:
        device = passes.compute.device
        bases, read = network.geometry.bases, network.ends.read
        first = len(bases) - len(network.geometry.stages)
        stages = [block.stage for block in network.blocks if any(block.module is module for module in read)]
        self.norms, self.passes, self.bases = network.token_norms, passes, bases
        self.thinnings = [thinnings.get(stage, ALL) for stage in [*(norm.stage for norm in self.norms), *stages]]
        self.places = [(norm.basis, norm.joined) for norm in self.norms] + [(first + stage, 0) for stage in stages]
        self.floored = [((1 - FLOOR) * w + FLOOR * w.mean()).float().to(device) for w in weights]
        sides = [bases[basis] * max(joined, 1) + 1 for basis, joined in self.places]
        self.sums = [torch.zeros(GROUPS, side, side, dtype=torch.float64, device=device) for side in sides]
        self.observer: Observer = ([*(norm.module for norm in self.norms), *read], self._observe)

    def _observe(self, i: int, inputs: Any, output: Tensor) -> None:
        tokens_in = inputs[0] if i < len(self.norms) else output
        pooled = tokens_in.ndim == 2  # one token of each image
        thinning = ALL if pooled else self.thinnings[i]
        values = tokens_in if pooled else thinning.of(tokens_in)
        values = _normalised(self.norms[i].module, values) if i < len(self.norms) else values.detach().float()
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
        totals, triangles, worth = [torch.zeros(()) for _ in self.bases], [], []
        for (basis, joined), groups in zip(self.places, self.sums, strict=True):
            of_groups = [symmetric(sums).cpu() for sums in self.passes.compute.sum(groups)]
            moment = torch.stack(of_groups).sum(0)
            if not torch.isfinite(moment).all():
                raise DataError("the tokens are not finite; check the base's weights, and --mean and --std")
            totals[basis] = totals[basis] + max(joined, 1) * _by_token(moment, self.bases[basis])[:-1, :-1]
            worth.append(moment[-1, -1])
            share = (moment[-1, -1] / GROUPS).clamp_min(torch.finfo(torch.float64).tiny)
            triangles.append(torch.stack([triangle(m / share) for m in of_groups]))
        directions = tuple(map(principal, totals))
        return TokenStatistics(directions, tuple(triangles), torch.stack(worth), torch.tensor(self.places))


def measure_tokens(network: Network, images: Split, weights: Sequence[Tensor], passes: Passes) -> TokenStatistics:
    """Measure the statistics of these images' tokens.

    Raises:
        DataError: the tokens are not finite.
    """
    moments = TokenMoments(network, weights, passes)
    passes.run(network, images, lambda *_: None, [moments.observer], stage="directions of tokens")
    return moments.statistics()
