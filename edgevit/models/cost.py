"""Multiply-accumulates and parameters as functions of the dimensions that pruning changes.

The papers call these MACs "FLOPs". With d embedding width, N tokens, L blocks, H heads per block, q and v the QK and
VO widths, e FFN width, C classes, p patch size:

    (3 (N-1) p^2 + 2 L N + C + 1) d + sum_l [ (2 N d + N^2)(q_l + v_l) H_l + 2 N d e_l ]

which gives the published 17.57, 4.60 and 1.25 G for DeiT-Base, -Small and -Tiny. Where a model has more than a class
token, N counts every token and N-1 is the number of patches; a second head counts its own C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgevit.models.anatomy import BlockDims

Quantity = Literal["macs", "params"]


@dataclass(frozen=True)
class UnitCosts:
    """What one more unit of each dimension of a block costs, over all its heads."""

    qk: int
    vo: int
    ffn: int


@dataclass(frozen=True)
class Geometry:
    """What pruning leaves alone, and so what the cost of given block dimensions depends on."""

    embed: int
    tokens: int  # patches and prefix tokens
    patches: int
    patch_values: int  # input values per patch: channels * height * width
    outputs: int  # rows of the classifier, over all heads of a distilled model
    classifier_heads: int  # 2 for a model with a distillation token
    other_params: int  # everything outside attention, FFN and classifier
    qkv_bias: bool
    attention_out_bias: bool
    ffn_bias: bool

    def with_classes(self, classes: int) -> Geometry:
        return replace(self, outputs=classes * self.classifier_heads)

    def unit_costs(self, heads: int, quantity: Quantity) -> UnitCosts:
        """Cost of one unit of QK width, VO width and FFN width in a block of `heads` heads."""
        d, n = self.embed, self.tokens
        if quantity == "macs":
            attention = (2 * n * d + n * n) * heads
            return UnitCosts(qk=attention, vo=attention, ffn=2 * n * d)
        bias = int(self.qkv_bias)
        return UnitCosts(qk=2 * heads * (d + bias), vo=heads * (2 * d + bias), ffn=2 * d + int(self.ffn_bias))

    def fixed(self, depth: int, quantity: Quantity) -> int:
        """Cost of everything that the block dimensions do not change."""
        if quantity == "macs":
            return (self.patches * self.patch_values + 2 * depth * self.tokens + self.outputs + 1) * self.embed
        block = self.embed * (int(self.attention_out_bias) + int(self.ffn_bias))
        return self.other_params + self.outputs * (self.embed + 1) + depth * block

    def block_cost(self, block: BlockDims, quantity: Quantity) -> int:
        """Cost of what pruning changes in one block."""
        unit = self.unit_costs(block.heads, quantity)
        return unit.qk * block.qk + unit.vo * block.vo + unit.ffn * block.ffn

    def cost(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        return self.fixed(len(blocks), quantity) + sum(self.block_cost(b, quantity) for b in blocks)

    def macs(self, blocks: Sequence[BlockDims]) -> int:
        """Multiply-accumulates of one image."""
        return self.cost(blocks, "macs")

    def params(self, blocks: Sequence[BlockDims]) -> int:
        """Number of parameters, exactly as the module has them."""
        return self.cost(blocks, "params")
