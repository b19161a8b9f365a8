"""Interpolated costs of a base's parts in one quantity, milliseconds or millijoules.

The cost of a network is

    fixed + sum over blocks of (attention + FFN + together + cut, each where it applies)

where `together` is what a block with both sites costs beyond their sum, and `cut` what a block costs that passes on
fewer tokens than it gets. Attentions and FFNs depend on their sizes, on the embedding's width and on the number of
tokens; `Prices.at` gives the costs at another embedding or number of tokens. Each stage of a network has its own, of
its own embedding, tokens and windows: `Prices.of_stages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims
from edgevit.records.model import HEAD_WIDTHS, WIDTHS, axis_name

Measured = Literal["ms", "mj"]  # ms of one inference, or mJ of one image
UNITS: dict[Measured, str] = {"ms": "ms", "mj": "mJ"}
Part = Literal["fixed", "block", "attention", "ffn", "cut"]
AXES: dict[Part, tuple[str, ...]] = {  # what the cost of a part depends on
    "fixed": ("embed",),
    "block": ("embed",),
    "attention": ("heads", "width", "embed", "tokens"),
    "ffn": ("width", "embed", "tokens"),
    "cut": ("tokens",),
}
NAMES = ("outside the blocks", "attention", "FFN", "blocks beyond their attention and FFN")
MOST_SAVED = 0.9  # largest saving of a block beyond the sum of its sites, as a share of its smallest attention
DECIMALS = 9  # decimals of an interpolated cost: costs are added as decimal numbers

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SizeGrid:
    """The costs of a part on a full grid of sizes."""

    sizes: tuple[NDArray[np.int64], ...]  # listed sizes along each axis, rising
    costs: _Floats  # cost of each combination of sizes, with one dimension for each axis

    def at(self, axis: int, size: int) -> SizeGrid:
        """Fix the size along an axis: below the smallest the smallest counts, between two costs are interpolated."""
        listed = self.sizes[axis]
        i = int(np.searchsorted(listed, max(size, listed[0])))
        costs = np.take(self.costs, i, axis)
        if size < listed[i] and i > 0:
            below, share = np.take(self.costs, i - 1, axis), (size - listed[i - 1]) / (listed[i] - listed[i - 1])
            costs = np.round(below + share * (costs - below), DECIMALS)
        return SizeGrid(self.sizes[:axis] + self.sizes[axis + 1 :], costs)


def size_text(part: Part, sizes: Sequence[int] | NDArray[np.int64]) -> str:
    """Format a part and its sizes: ffn (width 64, embed 192, tokens 37)."""
    return f"{part} ({', '.join(f'{axis} {size}' for axis, size in zip(AXES[part], sizes, strict=True))})"


@dataclass(frozen=True, eq=False)
class Prices:
    """Costs in one stage, at one width of the embedding and one number of tokens."""

    quantity: Measured
    # Costs of each part by stage; the first stage has the cost of everything outside all blocks.
    stages: tuple[Mapping[Part, SizeGrid], ...]
    base_blocks: tuple[BlockDims, ...]
    embed: int
    tokens: int  # number of input tokens of the blocks
    stage: int = 0

    @property
    def grids(self) -> Mapping[Part, SizeGrid]:
        return self.stages[self.stage]

    @cached_property
    def of_stages(self) -> tuple[Prices, ...]:
        """The costs in each stage; in others than this one at their own embeddings, for blocks that get all tokens."""

        def other(stage: int) -> Prices:
            embed, tokens = (int(sizes.max(initial=0)) for sizes in self.stages[stage]["attention"].sizes[2:])
            return replace(self, stage=stage, embed=embed, tokens=tokens)

        return tuple(self if stage == self.stage else other(stage) for stage in range(len(self.stages)))

    @property
    def embeds(self) -> list[int]:
        """The listed widths of the embedding, rising."""
        widths: list[int] = self.grids["attention"].sizes[2].tolist()
        return widths

    @property
    def token_counts(self) -> list[int]:
        """The listed numbers of tokens, rising; the last is all."""
        counts: list[int] = self.grids["attention"].sizes[3].tolist()
        return counts

    @property
    def saved(self) -> float:
        """The largest saving of a block beyond the sum of its sites, as a share of its smallest attention; or 0."""
        shares = [0.0]
        for grids in self.stages:
            if grids["attention"].costs.size:
                least = grids["attention"].costs[..., -1].min((0, 1))  # [embeddings]
                shares.append(float((-grids["block"].costs / least).max()))
        return max(shares)

    def at(self, embed: int, tokens: int | None = None) -> Prices:
        """Return the costs at an embedding of this width, for blocks that get so many tokens; None: all.

        Raises:
            CostTableError: the width is outside the listed ones, or only all tokens are listed.
        """
        if (embed, tokens) == (self.embed, self.tokens):
            return self
        least, most, counts = self.embeds[0], self.embeds[-1], self.token_counts
        if not least <= embed <= most:
            raise CostTableError(
                f"cost table: it lists embeddings of {least} to {most}, and this one has {embed}; measure that as well"
            )
        tokens = counts[-1] if tokens is None else min(tokens, counts[-1])
        if tokens < counts[-1] and len(counts) == 1:
            raise CostTableError(
                f"cost table: it lists blocks that get {counts[-1]} tokens, and these get {tokens}; "
                "`edgevit cost --tokens` measures that as well"
            )
        return self if (embed, tokens) == (self.embed, self.tokens) else replace(self, embed=embed, tokens=tokens)

    @cached_property
    def fixed(self) -> float:
        """The cost of everything outside the blocks."""
        first = self.of_stages[0]
        return float(first.grids["fixed"].at(0, first.embed).costs)

    @cached_property
    def together(self) -> float:
        """The cost of a block beyond the sum of both sites; it may be negative, down to its smallest attention."""
        return max(float(self.grids["block"].at(0, self.embed).costs), -float(self.attentions.costs.min()))

    @cached_property
    def attentions(self) -> SizeGrid:
        """The costs of attentions by heads and width."""
        return self._site("attention")

    @cached_property
    def ffns(self) -> SizeGrid:
        """The costs of FFNs by width."""
        return self._site("ffn")

    def _site(self, part: Part) -> SizeGrid:
        axis = AXES[part].index("embed")
        grid = self.grids[part].at(axis, self.embed).at(axis, self.tokens)
        return grid if self.tokens == self.token_counts[-1] else replace(grid, costs=grid.costs.round(DECIMALS))

    def attention(self, heads: int, of_queries: int, of_values: int) -> float:
        """Return the cost of an attention of these sizes.

        Raises:
            CostTableError: nothing as large is listed.
        """
        (counts, widths), costs = self.attentions.sizes, self.attentions.costs
        if heads > counts[-1] or max(of_queries, of_values) > widths[-1]:
            raise _too_large(f"an attention of {heads} heads, QK {of_queries}, VO {of_values}")
        # Work grows with the sum of both. Below the smallest listed size, np.interp returns the cost of the smallest.
        at_width = [np.interp((of_queries + of_values) / 2, widths, row) for row in costs]
        return round(float(np.interp(heads, counts, at_width)), DECIMALS)

    def ffn(self, width: int) -> float:
        """Return the cost of an FFN of this width.

        Raises:
            CostTableError: nothing as wide is listed.
        """
        (widths,), costs = self.ffns.sizes, self.ffns.costs
        if width > widths[-1]:
            raise _too_large(f"an FFN of width {width}")
        return round(float(np.interp(width, widths, costs)), DECIMALS)

    def cut(self, tokens: int) -> float:
        """Return the cost of passing on only so many tokens; 0 tokens: all that the block gets, at no cost."""
        (counts,), costs = self.grids["cut"].sizes, self.grids["cut"].costs
        return round(float(np.interp(tokens, counts, costs)), DECIMALS) if tokens and costs.size else 0.0

    def block(self, dims: BlockDims) -> float:
        """Return the cost of a block; if it lost a site, the cost of the other."""
        costs = []
        if dims.has("attention"):
            costs.append(self.attention(dims.heads, *dims.head_widths))
        if dims.has("ffn"):
            costs.append(self.ffn(dims.ffn))
        return fsum([*costs, self.together] if len(costs) == 2 else costs)

    def cost(self, blocks: Sequence[BlockDims]) -> float:
        """Return the cost of a network of these blocks."""
        placed = self._placed(blocks)
        return fsum([self.fixed, *(at.block(d) for at, d in placed), *(at.cut(d.tokens) for at, d in placed)])

    def parts(self, blocks: Sequence[BlockDims]) -> tuple[float, ...]:
        """Split the cost of a network into the parts of NAMES; the cost of cuts counts as attention."""
        placed = self._placed(blocks)
        return (
            self.fixed,
            sum(at.attention(d.heads, *d.head_widths) for at, d in placed if d.has("attention"))
            + sum(at.cut(d.tokens) for at, d in placed),
            sum(at.ffn(d.ffn) for at, d in placed if d.has("ffn")),
            sum(at.together for at, d in placed if d.has("attention") and d.has("ffn")),
        )

    def breakdown(self, blocks: Sequence[BlockDims]) -> str:
        """Format the parts, the largest first: attention 0.8 ms, outside the blocks 0.1 ms."""
        named = sorted(zip(self.parts(blocks), NAMES, strict=True), reverse=True)
        return ", ".join(f"{name} {cost:.4g} {UNITS[self.quantity]}" for cost, name in named if cost)

    def _placed(self, blocks: Sequence[BlockDims]) -> list[tuple[Prices, BlockDims]]:
        """Pair each block with the costs in its stage, at the number of tokens that it gets."""
        reached, placed = list(self.of_stages), list[tuple[Prices, BlockDims]]()
        for dims in blocks:
            at = reached[dims.stage]
            placed.append((at, dims))
            reached[dims.stage] = at.at(at.embed, dims.tokens) if dims.tokens else at
        return placed

    @property
    def base(self) -> float:
        """The cost of the base itself."""
        return self.cost(self.base_blocks)

    def fault(self) -> str | None:
        """Describe where a larger size costs less; None: nowhere."""
        unit = UNITS[self.quantity]
        for part in ("attention", "ffn", "fixed"):
            grid = self.grids[part]
            for axis in range(grid.costs.ndim):
                falls = np.argwhere(np.diff(grid.costs, axis=axis) < 0)
                if not len(falls):
                    continue
                smaller, larger = falls[0], falls[0] + np.eye(grid.costs.ndim, dtype=int)[axis]
                (least, low), (most, high) = (
                    (
                        size_text(part, [sizes[i] for sizes, i in zip(grid.sizes, at, strict=True)]),
                        grid.costs[tuple(at)],
                    )
                    for at in (smaller, larger)
                )
                return f"{most} costs {high:g} {unit}, less than the {low:g} {unit} of {least}"
        return None

    def hole(self, least: BlockDims, most: BlockDims) -> str | None:
        """Describe what the table lacks of the sizes from `least` to `most`; None: nothing."""
        counts, widths = self.attentions.sizes
        if counts[-1] < most.heads:
            return f"lists attentions of up to {counts[-1]} heads, and the base has {most.heads}"
        for axis in WIDTHS:
            listed = widths if axis in HEAD_WIDTHS else self.ffns.sizes[0]
            low, high = least[axis], most[axis]
            if high and (listed[0] > low or listed[-1] < high):  # 0: the site is removed
                return (
                    f"lists {axis_name(axis)} widths {listed[0]} to {listed[-1]}, and {low} to {high} can be asked for"
                )
        return None


def _too_large(size: str) -> CostTableError:
    return CostTableError(f"cost table: it lists nothing as large as {size}; measure that as well")
