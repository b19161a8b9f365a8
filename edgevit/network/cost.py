"""Multiply-accumulates and parameters as functions of the dimensions that pruning changes.

The papers call these MACs "FLOPs". With d embedding width, N tokens, L blocks, H heads per block, q and v the QK and
VO widths, e FFN width, C classes, p patch size:

    (3 (N-1) p^2 + 2 L N + C + 1) d + sum_l [ (2 N d + N^2)(q_l + v_l) H_l + 2 N d e_l ]

which gives the published 17.57, 4.60 and 1.25 G for DeiT-Base, -Small and -Tiny. Where a model has more than a class
token, N counts all tokens and N-1 is the number of patches; a second head counts its own C. If tokens are dropped, the
N of a block is the number of its inputs; ranking them, 0.1 % of a block, is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from edgevit.network.anatomy import Axis, BlockDims, Site

Quantity = Literal["macs", "params"]


@dataclass(frozen=True)
class UnitCosts:
    """Cost of one unit of each dimension of a block, over all its heads."""

    qk: int
    vo: int
    ffn: int


@dataclass(frozen=True)
class SiteCostTerms:
    """Terms of the cost of one kind of site except its sizes; equal in all blocks of a model."""

    inputs: int  # matrices that read the tokens: 3 of an attention, 1 of an FFN, 2 of a gated FFN
    input_biases: bool  # of these
    vectors: int  # vectors of embedding width: norm, LayerScale, output bias


@dataclass(frozen=True)
class Geometry:
    """Sizes that do not depend on the dimensions of blocks, from which their cost follows."""

    embed: int
    tokens: int  # patches and prefix tokens before the first block
    patches: int
    patch_values: int  # input values per patch: channels * height * width
    outputs: int  # rows of the classifier, over all heads of a distilled model
    classifier_heads: int  # 2 for a model with a distillation token
    other_params: int  # outside blocks and classifier
    attention: SiteCostTerms
    ffn: SiteCostTerms
    sites: tuple[Site, ...] = ()  # of the model; empty: nothing is frozen

    def with_classes(self, classes: int) -> Geometry:
        return replace(self, outputs=classes * self.classifier_heads)

    def with_embed(self, embed: int) -> Geometry:
        """The same with another embedding width, without biases that a change of width may add."""
        # All parameters outside blocks and classifier, of patches and positions, have the width of the embedding.
        return replace(self, embed=embed, other_params=self.other_params // self.embed * embed)

    @property
    def fixed_embed(self) -> str | None:
        """The reason why the embedding cannot be narrowed; None: it can."""
        return next((site.frozen["embed"] for site in self.sites if "embed" in site.frozen), None)

    def at(self, tokens: int) -> Geometry:
        """The same with another number of tokens."""
        return replace(self, tokens=tokens)

    def reaching(self, blocks: Sequence[BlockDims]) -> list[int]:
        """The number of input tokens of each block."""
        passed = accumulate(blocks, lambda n, block: block.tokens or n, initial=self.tokens)
        return list(passed)[: len(blocks)]

    def frozen(self, block: int) -> Mapping[Axis, str]:
        """The frozen axes of the sites of a block, with their reasons."""
        return {axis: reason for site in self.sites if site.block == block for axis, reason in site.frozen.items()}

    def unit_costs(self, heads: int, quantity: Quantity) -> UnitCosts:
        """Cost of one unit of QK width, VO width and FFN width in a block of `heads` heads."""
        d, n, ffn = self.embed, self.tokens, self.ffn
        if quantity == "macs":
            attention = (2 * n * d + n * n) * heads
            return UnitCosts(qk=attention, vo=attention, ffn=(ffn.inputs + 1) * n * d)
        bias = int(self.attention.input_biases)
        return UnitCosts(
            qk=2 * heads * (d + bias),
            vo=heads * (2 * d + bias),
            ffn=(ffn.inputs + 1) * d + ffn.inputs * int(ffn.input_biases),
        )

    def fixed(self, depth: int, quantity: Quantity) -> int:
        """Cost that does not depend on the widths of this many complete blocks."""
        if quantity == "macs":
            outside = (self.patches * self.patch_values + self.outputs + 1) * self.embed
        else:
            outside = self.other_params + self.outputs * (self.embed + 1)
        return outside + depth * sum(self.site_fixed(kind, quantity) for kind in ("attention", "ffn"))

    def site_fixed(self, kind: Literal["attention", "ffn"], quantity: Quantity) -> int:
        """Cost of a site that does not depend on its widths."""
        if quantity == "macs":
            return self.tokens * self.embed  # of its norm
        return self.embed * (self.attention if kind == "attention" else self.ffn).vectors

    def fixed_in(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost that does not depend on the widths of these blocks."""
        total = self.fixed(0, quantity)
        for block, tokens in zip(blocks, self.reaching(blocks), strict=True):
            at = self.at(tokens)
            total += at.site_fixed("attention", quantity) if block.has_attention else 0
            total += at.site_fixed("ffn", quantity) if block.has_ffn else 0
        return total

    def block_cost(self, block: BlockDims, quantity: Quantity) -> int:
        """Cost that depends on the widths of one block, for `tokens` tokens."""
        unit = self.unit_costs(block.heads, quantity)
        return unit.qk * block.qk + unit.vo * block.vo + unit.ffn * block.ffn

    def cost(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost of a model: of all outside its blocks, and the sum over its sites."""
        pairs = zip(blocks, self.reaching(blocks), strict=True)
        return self.fixed_in(blocks, quantity) + sum(self.at(n).block_cost(block, quantity) for block, n in pairs)

    def macs(self, blocks: Sequence[BlockDims]) -> int:
        """Multiply-accumulates of one image."""
        return self.cost(blocks, "macs")

    def params(self, blocks: Sequence[BlockDims]) -> int:
        """Exact number of parameters of the module."""
        return self.cost(blocks, "params")
