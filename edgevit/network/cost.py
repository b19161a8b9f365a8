"""Multiply-accumulates and parameters as functions of the dimensions that pruning changes.

The papers call these MACs "FLOPs". With d embedding width, N tokens, L blocks, H heads per block, q and v the QK and
VO widths, e FFN width, C classes, p patch size:

    (3 (N-1) p^2 + 2 L N + C + 1) d + sum_l [ (2 N d + N^2)(q_l + v_l) H_l + 2 N d e_l ]

which gives the published 17.57, 4.60 and 1.25 G for DeiT-Base, -Small and -Tiny. Where a model has more than a class
token, N counts every token and N-1 is the number of patches; a second head counts its own C. Where tokens leave, the N
of a block is the number of those that reach it; ranking them, 0.1 % of a block, is not counted.
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
    """What one more unit of each dimension of a block costs, over all its heads."""

    qk: int
    vo: int
    ffn: int


@dataclass(frozen=True)
class SiteCostTerms:
    """What the cost of one kind of site depends on beside its sizes; alike in all blocks of a model."""

    inputs: int  # matrices that read the tokens: 3 of an attention, 1 of an FFN, 2 of one that is gated
    input_biases: bool  # of these
    vectors: int  # parameters of embedding width that go with the site: its norm, LayerScale, output bias


@dataclass(frozen=True)
class Geometry:
    """What pruning leaves alone, and so what the cost of given block dimensions depends on."""

    embed: int
    tokens: int  # patches and prefix tokens, as many as the first block is given
    patches: int
    patch_values: int  # input values per patch: channels * height * width
    outputs: int  # rows of the classifier, over all heads of a distilled model
    classifier_heads: int  # 2 for a model with a distillation token
    other_params: int  # everything outside blocks and classifier
    attention: SiteCostTerms
    ffn: SiteCostTerms
    sites: tuple[Site, ...] = ()  # of the model it is of; none where nothing is frozen

    def with_classes(self, classes: int) -> Geometry:
        return replace(self, outputs=classes * self.classifier_heads)

    def with_embed(self, embed: int) -> Geometry:
        """The same of another embedding width; but for biases that the change of width may have added."""
        # All that lies outside the blocks and the classifier, patches and positions, is as wide as the embedding.
        return replace(self, embed=embed, other_params=self.other_params // self.embed * embed)

    @property
    def fixed_embed(self) -> str | None:
        """Why the embedding cannot be narrowed; None: it can."""
        return next((site.frozen["embed"] for site in self.sites if "embed" in site.frozen), None)

    def at(self, tokens: int) -> Geometry:
        """The same where so many tokens pass through blocks."""
        return replace(self, tokens=tokens)

    def reaching(self, blocks: Sequence[BlockDims]) -> list[int]:
        """How many tokens each block is given."""
        passed = accumulate(blocks, lambda n, block: block.tokens or n, initial=self.tokens)
        return list(passed)[: len(blocks)]

    def frozen(self, block: int) -> Mapping[Axis, str]:
        """The axes of a block's sites that cannot be cut, with the reason."""
        return {axis: why for site in self.sites if site.block == block for axis, why in site.frozen.items()}

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
        """Cost of everything that the widths of so many whole blocks do not change."""
        if quantity == "macs":
            outside = (self.patches * self.patch_values + self.outputs + 1) * self.embed
        else:
            outside = self.other_params + self.outputs * (self.embed + 1)
        return outside + depth * sum(self.site_fixed(kind, quantity) for kind in ("attention", "ffn"))

    def site_fixed(self, kind: Literal["attention", "ffn"], quantity: Quantity) -> int:
        """What a site costs for being there, whatever its widths."""
        if quantity == "macs":
            return self.tokens * self.embed  # of its norm
        return self.embed * (self.attention if kind == "attention" else self.ffn).vectors

    def fixed_in(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost of everything that the widths of these blocks do not change."""
        total = self.fixed(0, quantity)
        for block, tokens in zip(blocks, self.reaching(blocks), strict=True):
            at = self.at(tokens)
            total += at.site_fixed("attention", quantity) if block.has_attention else 0
            total += at.site_fixed("ffn", quantity) if block.has_ffn else 0
        return total

    def block_cost(self, block: BlockDims, quantity: Quantity) -> int:
        """Cost of what the widths of one block change, for `tokens` tokens."""
        unit = self.unit_costs(block.heads, quantity)
        return unit.qk * block.qk + unit.vo * block.vo + unit.ffn * block.ffn

    def cost(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost of a model: what lies outside its blocks, and the sum over the sites that are there."""
        pairs = zip(blocks, self.reaching(blocks), strict=True)
        return self.fixed_in(blocks, quantity) + sum(self.at(n).block_cost(block, quantity) for block, n in pairs)

    def macs(self, blocks: Sequence[BlockDims]) -> int:
        """Multiply-accumulates of one image."""
        return self.cost(blocks, "macs")

    def params(self, blocks: Sequence[BlockDims]) -> int:
        """Number of parameters, exactly as the module has them."""
        return self.cost(blocks, "params")
