"""Fit the affine map that best replaces a site which is removed.

When a site is removed, the rest of the network is solved again and takes over most of what is linear in the site. So
the worth of a site is the loss with its best affine replacement, and not the loss with nothing in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.thinning import every_token
from edgevit.derivation.solve.least_squares import Regression
from edgevit.network.layers import SiteLayer
from edgevit.network.network import Network
from edgevit.train.passes import Observer, Passes


@dataclass(frozen=True)
class AffineReplacement:
    """The affine map that replaces a site, fp32 on the device."""

    branch: SiteLayer[Any]
    weight: Tensor  # [d, d] linear part of the map
    bias: Tensor  # [d] constant part of the map

    def apply(self, tokens: Tensor) -> Tensor:
        """Add the map's output to the tokens."""
        affine = F.linear(self.branch.before(tokens), self.weight, self.bias)
        return tokens + affine if self.branch.joined is None else self.branch.joined(tokens, affine)


# Replacements of a block's attention and FFN; None: the block lacks that site.
BlockReplacements = tuple[AffineReplacement | None, AffineReplacement | None]


class SiteRegressions:
    """Regressions from what each site reads to what it adds to the tokens, summed over a pass that they observe."""

    def __init__(self, network: Network, passes: Passes) -> None:
        self.passes, self.thinning = passes, every_token(network)
        self.branches = [branch for pair in network.layers for branch in pair]
        widths = [None if branch is None else branch.output.out_features for branch in self.branches]
        self.sums = [None if d is None else Regression(d, d, passes.compute.device) for d in widths]
        self.observer: Observer = ([None if b is None else b.module for b in self.branches], self._observe)

    def _observe(self, i: int, inputs: Any, output: Tensor) -> None:
        branch, sums = self.branches[i], self.sums[i]
        assert branch is not None and sums is not None
        tokens = inputs[0]
        weights, groups = self.thinning.weights(tokens, None), self.thinning.groups(tokens)
        sums.add(tokens.flatten(0, 1), branch.added(output).flatten(0, 1), weights, groups)

    def solve(self) -> list[BlockReplacements]:
        """The replacements of every block."""
        replacements: list[AffineReplacement | None] = []
        for branch, sums in zip(self.branches, self.sums, strict=True):
            if branch is None or sums is None:
                replacements.append(None)
                continue
            weight, bias = sums.map(self.passes.compute.sum).solve()
            assert bias is not None
            replacements.append(AffineReplacement(branch, weight.float(), bias.float()))
        return list(zip(replacements[::2], replacements[1::2], strict=True))


def fit_replacements(network: Network, images: Split, passes: Passes) -> list[BlockReplacements]:
    """Fit the affine replacements of every block's sites to these images."""
    regressions = SiteRegressions(network, passes)
    passes.run(network, images, lambda *_: None, [regressions.observer], stage="what is linear in sites")
    return regressions.solve()


def apply_replacements(replacements: Sequence[AffineReplacement | None], tokens: Tensor) -> Tensor:
    """Pass tokens through each of the replacements."""
    for replacement in replacements:
        tokens = tokens if replacement is None else replacement.apply(tokens)
    return tokens
