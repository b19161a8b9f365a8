"""The entries of a cost table's file: what it lists of attentions, FFNs, blocks, embeddings and numbers of tokens."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, model_validator

from edgevit.derivation.allocate.prices import BlockPrices, Measured
from edgevit.derivation.allocate.tokens import Between, Law, TokenPrices
from edgevit.network.anatomy import BlockDims
from edgevit.records.model import Size

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AttentionCost(BaseModel, extra="forbid", frozen=True):
    """What the attention of a block takes, with its norm and the sum that it is added to."""

    heads: Size
    width: Size | None = None  # of QK and VO
    qk: Size | None = None
    vo: Size | None = None
    ms: Positive
    mj: Positive | None = None

    @model_validator(mode="after")
    def _has_one_width_or_two(self) -> AttentionCost:
        if [self.width is None, self.qk is None, self.vo is None] not in ([False, True, True], [True, False, False]):
            raise ValueError(f"attention of {self.heads} heads needs width, or qk and vo")
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, QK width, VO width."""
        return self.heads, self.qk or self.width or 0, self.vo or self.width or 0


class FfnCost(BaseModel, extra="forbid", frozen=True):
    """What the FFN of a block takes, with its norm and the sum that it is added to."""

    width: Size
    ms: Positive
    mj: Positive | None = None


class BaseSizes(BaseModel, extra="forbid", frozen=True):
    """What must be a base's own for the table to be of it."""

    family: str
    embed: Size
    tokens: Size
    patch_values: Size  # input values per patch: channels * height * width
    depth: Size


class BlockSizes(BaseModel, extra="forbid", frozen=True):
    heads: Size
    qk: Size
    vo: Size
    ffn: Size

    @property
    def dims(self) -> BlockDims:
        return BlockDims(**dict(self))


class SiteCosts(BaseModel, extra="forbid", frozen=True):
    """What one block takes, or all alike, at one width of the embedding."""

    block_ms: Finite = 0.0
    block_mj: Finite | None = None  # left out: 0, if the others have it
    attention: tuple[AttentionCost, ...] = Field(min_length=1)
    ffn: tuple[FfnCost, ...] = Field(min_length=1)

    def in_quantity(self, quantity: Measured, between: Between) -> BlockPrices:
        attention, ffn = sorted(self.attention, key=lambda a: a.sizes), sorted(self.ffn, key=lambda f: f.width)
        return BlockPrices(
            np.array([a.sizes for a in attention]),
            np.array([getattr(a, quantity) for a in attention]),
            np.array([f.width for f in ffn]),
            np.array([getattr(f, quantity) for f in ffn]),
            getattr(self, f"block_{quantity}") or 0.0,
            between,
        )

    @property
    def sizes(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Those that are listed, of attentions and of FFNs."""
        return sorted(cost.sizes for cost in self.attention), sorted(cost.width for cost in self.ffn)

    def fault(self, fixed_mj: float | None, between: Between) -> str | None:
        """What contradicts itself; None: nothing."""
        listed_mj = [*(cost.mj for cost in self.attention), *(cost.mj for cost in self.ffn), fixed_mj]
        silent = {mj is None for mj in listed_mj}
        if len(silent) > 1 or (fixed_mj is None and self.block_mj is not None):
            return "lists mj of some figures; give it of all, fixed_mj among them, or of none"
        quantities: tuple[Measured, ...] = ("ms",) if fixed_mj is None else ("ms", "mj")
        for quantity in quantities:
            together = getattr(self, f"block_{quantity}") or 0.0
            if any(together + getattr(cost, quantity) < 0 for cost in self.attention):
                return f"has {together:g} as block_{quantity}, and an attention that takes less than that"
        listed = {cost.sizes for cost in self.attention}
        heads, widths = {h for h, _, _ in listed}, {w for _, w, _ in listed}
        if between == "linear" and listed != {(h, w, w) for h in heads for w in widths}:
            return "lists no full grid of heads and widths, which between: linear needs"
        return None


class BlockCosts(SiteCosts, frozen=True):
    """The costs of one block of the base, or of all alike."""

    base: BlockSizes


class NarrowerCosts(BaseModel, extra="forbid", frozen=True):
    """What everything takes where the embedding is narrower."""

    embed: Size
    fixed_ms: NonNegative
    fixed_mj: NonNegative | None = None
    blocks: tuple[SiteCosts, ...] = Field(min_length=1)


class SiteLaw(BaseModel, extra="forbid", frozen=True):
    """What a site takes that is given fewer tokens: ms + share_ms * what it takes with all of them."""

    ms: NonNegative = 0.0
    share_ms: Positive
    mj: NonNegative | None = None
    share_mj: Positive | None = None

    def in_quantity(self, quantity: Measured) -> Law:
        return Law(getattr(self, quantity) or 0.0, getattr(self, f"share_{quantity}"))


class TokenCosts(BaseModel, extra="forbid", frozen=True):
    """What blocks take that are given so many tokens, and the block that passes them on."""

    tokens: Size
    cut_ms: NonNegative = 0.0
    cut_mj: NonNegative | None = None
    attention: SiteLaw
    ffn: SiteLaw

    @property
    def has_energy(self) -> bool | None:
        """Whether it says what either site takes in mJ; None: of one it does, or of none but of the cut."""
        told = {self.attention.share_mj is not None, self.ffn.share_mj is not None}
        others = (self.cut_mj, self.attention.mj, self.ffn.mj)
        return None if len(told) > 1 or (told == {False} and any(mj is not None for mj in others)) else told == {True}

    def in_quantity(self, quantity: Measured) -> TokenPrices:
        cut = getattr(self, f"cut_{quantity}") or 0.0
        return TokenPrices(self.tokens, cut, self.attention.in_quantity(quantity), self.ffn.in_quantity(quantity))
