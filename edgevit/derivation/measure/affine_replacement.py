"""What an affine map of what a site reads makes up for where the site is gone.

What stays is solved again behind a site that goes, and takes over most of what is linear in it. So what a site is worth
is not what is lost with nothing in its place, but what is lost with the affine map there that comes nearest to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.solve.least_squares import Regression
from edgevit.network.families import Branch, family_of
from edgevit.train.passes import Observer, Passes

RIDGE = 1e-3  # as for `Regression.solve`


@dataclass(frozen=True)
class StandIn:
    """The affine map in a site's place, fp32 on the device."""

    branch: Branch
    weight: Tensor  # [d, d]
    bias: Tensor  # [d]

    def past(self, tokens: Tensor) -> Tensor:
        """The tokens behind it."""
        return tokens + F.linear(self.branch.before(tokens), self.weight, self.bias)


OfBlock = tuple[StandIn | None, StandIn | None]  # in place of attention and FFN; None: there is none


class SeenSites:
    """Sums over what each site reads and what it adds to the tokens, of a pass that it observes."""

    def __init__(self, network: nn.Module, passes: Passes) -> None:
        family = family_of(network)
        embed, device = family.geometry(network).embed, passes.compute.device
        self.passes = passes
        self.branches = [branch for pair in family.branches(network) for branch in pair]
        self.sums = [None if branch is None else Regression(embed, embed, device) for branch in self.branches]
        self.observer: Observer = ([None if b is None else b.module for b in self.branches], self._see)

    def _see(self, i: int, given: Any, output: Tensor) -> None:
        branch, sums = self.branches[i], self.sums[i]
        assert branch is not None and sums is not None
        sums.add(given[0].flatten(0, 1), branch.added(output).flatten(0, 1))

    def stand_ins(self) -> list[OfBlock]:
        """By block."""
        made: list[StandIn | None] = []
        for branch, sums in zip(self.branches, self.sums, strict=True):
            if branch is None or sums is None:
                made.append(None)
                continue
            weight, bias = sums.map(self.passes.compute.sum).solve(RIDGE)
            assert bias is not None
            made.append(StandIn(branch, weight.float(), bias.float()))
        return list(zip(made[::2], made[1::2], strict=True))


def stand_ins(network: nn.Module, images: Split, passes: Passes) -> list[OfBlock]:
    """What stands in for the sites of each block, fitted to these images."""
    seen = SeenSites(network, passes)
    passes.run(network, images, lambda *_: None, [seen.observer], stage="what is linear in sites")
    return seen.stand_ins()


def past(stand_ins: Sequence[StandIn | None], tokens: Tensor) -> Tensor:
    """The tokens behind each of them."""
    for one in stand_ins:
        tokens = tokens if one is None else one.past(tokens)
    return tokens
