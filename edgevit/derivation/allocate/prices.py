"""A cost table in one quantity, milliseconds or millijoules: what every site of every size costs.

The cost of a model is

    fixed + sum over blocks of (attention + FFN + together, each where there is such)

where `together` is what a block with both sites takes beyond their sum: it goes when either site does. A block that
passes on fewer tokens than it is given takes more, to rank them. All of it is of one width of the embedding and of
blocks that are given all tokens; `Prices.at` gives those of another width, and of fewer tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import fsum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgevit.derivation.allocate.tokens import Between, TokenPrices, of_fewer
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims

Measured = Literal["ms", "mj"]  # of one inference; of one image
UNITS: dict[Measured, str] = {"ms": "ms", "mj": "mJ"}
PARTS = ("outside the blocks", "attention", "FFN", "blocks beyond their attention and FFN")
MOST_SAVED = 0.9  # of its smallest attention: what a block is believed to take less than its sites by themselves
DECIMALS = 9  # of what a site is said to take: costs are added as decimal numbers


@dataclass(frozen=True)
class BlockPrices:
    """What is listed of one block: n attentions and m FFNs."""

    sizes: NDArray[np.int64]  # [n, 3]: heads, QK width, VO width
    attentions: NDArray[np.float64]  # [n]
    widths: NDArray[np.int64]  # [m], rising
    ffns: NDArray[np.float64]  # [m]
    together: float
    between: Between

    @cached_property
    def _grid(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Numbers of heads [h], widths [w] and what they cost [h, w], where every width is listed of each number."""
        heads, at_heads = np.unique(self.sizes[:, 0], return_inverse=True)
        widths, at_widths = np.unique(self.sizes[:, 1], return_inverse=True)
        costs = np.empty((len(heads), len(widths)))
        costs[at_heads, at_widths] = self.attentions
        return heads, widths, costs

    def attention(self, heads: int, qk: int, vo: int) -> float | None:
        """None: nothing as large is listed."""
        enough = (self.sizes >= (heads, qk, vo)).all(1)
        if not enough.any():
            return None
        if self.between == "above":
            return round(float(self.attentions[enough].min()), DECIMALS)
        counts, widths, costs = self._grid
        # Work grows with qk + vo. Below the smallest that is listed, np.interp gives the smallest.
        at_width = [np.interp((qk + vo) / 2, widths, row) for row in costs]
        return round(float(np.interp(heads, counts, at_width)), DECIMALS)

    def ffn(self, width: int) -> float | None:
        """None: nothing as wide is listed."""
        at = bisect_left(self.widths, width)
        if at == len(self.widths):
            return None
        if self.between == "above":
            return round(float(self.ffns[at]), DECIMALS)
        return round(float(np.interp(width, self.widths, self.ffns)), DECIMALS)

    def fault(self, unit: str) -> str | None:
        """Where more of something takes less, or something is listed twice; None: nowhere."""
        sizes, costs = self.sizes, self.attentions
        no_more = (sizes[:, None] <= sizes[None]).all(2)  # [n, n]: the first has no more heads and is no wider
        less = no_more & ~np.eye(len(costs), dtype=bool)
        if (pairs := np.argwhere(less & less.T)).size:
            return f"lists {told(sizes[pairs[0, 0]])} twice"
        if (pairs := np.argwhere(less & (costs[:, None] > costs[None]))).size:
            i, j = pairs[0]
            seen, least = f"{costs[j]:g} {unit}", f"{costs[i]:g} {unit}"
            return f"{told(sizes[j])} takes {seen}, less than the {least} of {told(sizes[i])}"
        for (a, b), (x, y) in zip(
            zip(self.widths, self.widths[1:], strict=False), zip(self.ffns, self.ffns[1:], strict=False), strict=True
        ):
            if a == b:
                return f"lists FFN width {a} twice"
            if x > y:
                return f"FFN width {b} takes {y:g} {unit}, less than the {x:g} {unit} of width {a}"
        return None

    def hole(self, least: BlockDims, most: BlockDims) -> str | None:
        """What the table lacks of the widths from `least` to `most`, in words; None: nothing."""
        of_heads = self.sizes[self.sizes[:, 0] == most.heads]
        if not len(of_heads):
            return f"lists no attention of {most.heads} heads"
        for name, column, low, high in (("QK", 1, least.qk, most.qk), ("VO", 2, least.vo, most.vo)):
            first, last = of_heads[:, column].min(), of_heads[:, column].max()
            if first > low or last < high:
                return (
                    f"lists {name} widths {first} to {last} of {most.heads} heads, and {low} to {high} can be asked for"
                )
        if self.attention(most.heads, most.qk, most.vo) is None:
            return f"lists nothing as wide as {told((most.heads, most.qk, most.vo))}"
        first, last = self.widths[0], self.widths[-1]
        if first > least.ffn or last < most.ffn:
            return f"lists FFN widths {first} to {last}, and {least.ffn} to {most.ffn} can be asked for"
        return None

    def between_widths(self, wider: BlockPrices, share: float) -> BlockPrices:
        """The prices of an embedding that is so much of the way from this width to a wider one; the same is listed."""
        attentions, ffns = _line(self.attentions, wider.attentions, share), _line(self.ffns, wider.ffns, share)
        together = float(_line(np.array(self.together), np.array(wider.together), share))
        return replace(self, attentions=attentions, ffns=ffns, together=together)

    def of_fewer(self, listed: Sequence[TokenPrices], whole: int, tokens: int) -> BlockPrices:
        """The prices of a block that is given so many of all tokens."""
        laws = {site: [(one.tokens, getattr(one, site)) for one in listed] for site in ("attention", "ffn")}
        attentions = of_fewer(self.attentions, laws["attention"], whole, tokens, self.between).round(DECIMALS)
        ffns = of_fewer(self.ffns, laws["ffn"], whole, tokens, self.between).round(DECIMALS)
        # What is saved beyond the sum is no more than the smallest attention takes.
        together = max(self.together, -float(attentions.min()))
        return replace(self, attentions=attentions, ffns=ffns, together=together)

    def less_than(self, narrower: BlockPrices, unit: str) -> str | None:
        """What takes less here than at a narrower embedding, where the same is listed; None: nothing."""
        for sizes, own, other in zip(self.sizes, self.attentions, narrower.attentions, strict=True):
            if own < other:
                return f"{told(sizes)} takes {own:g} {unit}, less than the {other:g} {unit}"
        for width, own, other in zip(self.widths, self.ffns, narrower.ffns, strict=True):
            if own < other:
                return f"FFN width {width} takes {own:g} {unit}, less than the {other:g} {unit}"
        return None


def _line(low: NDArray[np.float64], high: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """What lies so much of the way from one to the other."""
    return np.round(low + share * (high - low), DECIMALS)


def told(sizes: Sequence[int] | NDArray[np.int64]) -> str:
    heads, qk, vo = sizes
    return f"attention of {heads} heads, QK {qk}, VO {vo}"


@dataclass(frozen=True)
class Prices:
    """What a budget is counted by."""

    quantity: Measured
    fixed: float  # whatever the blocks are
    blocks: tuple[BlockPrices, ...]  # one for all of the base's blocks alike, or one for each
    base_blocks: tuple[BlockDims, ...]  # the base's own sizes
    embed: int  # width of the embedding that they are of
    narrower: tuple[Prices, ...] = ()  # those of narrower ones, the widest first
    tokens: int = 0  # that blocks are given
    fewer: tuple[TokenPrices, ...] = ()  # what is listed of fewer tokens, the most first
    of_all_tokens: Prices | None = None  # where blocks are given fewer than all: the prices with all of them

    @property
    def embeds(self) -> tuple[int, int]:
        """The narrowest and the widest embedding of which anything is known."""
        return self.narrower[-1].embed if self.narrower else self.embed, self.embed

    @property
    def saved(self) -> float:
        """What a block takes less than its sites by themselves, at most, as a share of its smallest attention; or 0."""
        blocks = [block for prices in (self, *self.narrower) for block in prices.blocks]
        return max(0.0, *(-block.together / float(block.attentions.min()) for block in blocks))

    def at(self, embed: int, tokens: int | None = None) -> Prices:
        """The prices of an embedding of this width, and of blocks that are given so many tokens; None: all.

        A width between two that are listed is priced as sizes between two are; fewer tokens than are listed cost what
        the fewest cost.

        Raises:
            CostTableError: the width is not within those that are listed, or nothing is listed of fewer tokens.
        """
        prices = (self.of_all_tokens or self)._at_width(embed)
        if tokens is None or tokens >= prices.tokens:
            return prices
        if not prices.fewer:
            raise CostTableError(
                f"cost table: it says what blocks take that are given {prices.tokens} tokens, and these get {tokens}; "
                "`edgevit cost --tokens` measures that as well"
            )
        blocks = tuple(block.of_fewer(prices.fewer, prices.tokens, tokens) for block in prices.blocks)
        return replace(prices, blocks=blocks, tokens=tokens, of_all_tokens=prices)

    def cut(self, tokens: int) -> float:
        """What a block takes more that passes on only so many; nothing for 0: it passes on all that it is given."""
        if not tokens or not self.fewer:
            return 0.0
        rising = self.fewer[::-1]
        return round(float(np.interp(tokens, [one.tokens for one in rising], [one.cut for one in rising])), DECIMALS)

    def _at_width(self, embed: int) -> Prices:
        if embed == self.embed:
            return self
        least, most = self.embeds
        if not least <= embed <= most:
            raise CostTableError(
                f"cost table: it lists embeddings of {least} to {most}, and this one has {embed}; measure that as well"
            )
        rungs = (self, *self.narrower)
        below = next(i for i, prices in enumerate(rungs) if prices.embed <= embed)
        low, high = rungs[below], rungs[below - 1]
        if embed == low.embed:
            return low
        if self.blocks[0].between == "above":
            return replace(high, narrower=())
        share = (embed - low.embed) / (high.embed - low.embed)
        fixed = float(_line(np.array(low.fixed), np.array(high.fixed), share))
        blocks = (a.between_widths(b, share) for a, b in zip(low.blocks, high.blocks, strict=True))
        return replace(low, fixed=fixed, blocks=tuple(blocks), embed=embed)

    def fault(self, block: int) -> str | None:
        """Where more of something takes less, or something is listed twice; None: nowhere."""
        unit, rungs = UNITS[self.quantity], (self, *self.narrower)
        for prices in rungs:
            if (fault := prices.of(block).fault(unit)) is not None:
                return fault if prices is self else f"at an embedding of {prices.embed}: {fault}"
        for wider, prices in pairwise(rungs):
            if wider.fixed < prices.fixed:
                return (
                    f"what lies outside the blocks takes {wider.fixed:g} {unit} at an embedding of {wider.embed}, less "
                    f"than the {prices.fixed:g} {unit} at {prices.embed}"
                )
            if (less := wider.of(block).less_than(prices.of(block), unit)) is not None:
                return f"at an embedding of {wider.embed}, {less} at {prices.embed}"
        return None

    def of(self, block: int) -> BlockPrices:
        """What is listed of one block of the base."""
        assert 0 <= block < len(self.base_blocks)
        return self.blocks[block if len(self.blocks) > 1 else 0]

    def attention(self, block: int, heads: int, qk: int, vo: int) -> float:
        """What the attention of a block takes at these sizes.

        Raises:
            CostTableError: nothing as large is listed.
        """
        return _listed(self.of(block).attention(heads, qk, vo), block, told((heads, qk, vo)))

    def ffn(self, block: int, width: int) -> float:
        """What the FFN of a block takes at this width.

        Raises:
            CostTableError: nothing as wide is listed.
        """
        return _listed(self.of(block).ffn(width), block, f"FFN width {width}")

    def together(self, block: int) -> float:
        """What the block takes beyond the sum of both sites; it may be negative."""
        return self.of(block).together

    def block(self, block: int, dims: BlockDims) -> float:
        """What a block takes; of one that lost a site, what the other takes."""
        terms = []
        if dims.has_attention:
            terms.append(self.attention(block, dims.heads, dims.qk, dims.vo))
        if dims.has_ffn:
            terms.append(self.ffn(block, dims.ffn))
        return fsum([*terms, self.together(block)] if len(terms) == 2 else terms)

    def cost(self, blocks: Sequence[BlockDims], kept: Sequence[int] | None = None) -> float:
        """What a model takes; `kept` says which of the base's blocks these are, if not all."""
        placed = self._placed(blocks, kept)
        return fsum([self.fixed, *(at.block(i, dims) for at, i, dims in placed), *map(self.cut, _passed(blocks))])

    def parts(self, blocks: Sequence[BlockDims], kept: Sequence[int] | None = None) -> tuple[float, ...]:
        """`cost`, split into the PARTS; ranking tokens counts as attention."""
        placed = self._placed(blocks, kept)
        return (
            self.fixed,
            sum(at.attention(i, d.heads, d.qk, d.vo) for at, i, d in placed if d.has_attention)
            + sum(map(self.cut, _passed(blocks))),
            sum(at.ffn(i, d.ffn) for at, i, d in placed if d.has_ffn),
            sum(at.together(i) for at, i, d in placed if d.has_attention and d.has_ffn),
        )

    def made_of(self, blocks: Sequence[BlockDims], kept: Sequence[int] | None = None) -> str:
        """`parts` in words."""
        return parts_told(self.parts(blocks, kept), self.quantity)

    def _placed(self, blocks: Sequence[BlockDims], kept: Sequence[int] | None) -> list[tuple[Prices, int, BlockDims]]:
        """Each block with the prices of as many tokens as it is given, and its number in the base."""
        if kept is None:
            assert len(blocks) == len(self.base_blocks) or len(self.blocks) == 1
            kept = range(len(blocks))
        given = list(accumulate(_passed(blocks), lambda before, now: now or before, initial=self.tokens))[:-1]
        at = {tokens: self.at(self.embed, tokens) for tokens in set(given)}
        return [(at[n], i, dims) for n, i, dims in zip(given, kept, blocks, strict=True)]

    @property
    def base(self) -> float:
        """What the base itself takes."""
        return self.cost(self.base_blocks)


def _passed(blocks: Sequence[BlockDims]) -> list[int]:
    """How many tokens each passes on; 0: all that it is given."""
    return [dims.tokens for dims in blocks]


def parts_told(parts: Sequence[float], quantity: Measured) -> str:
    """The largest first: attention 0.8 ms, outside the blocks 0.1 ms."""
    named = sorted(zip(parts, PARTS, strict=True), reverse=True)
    return ", ".join(f"{name} {cost:.4g} {UNITS[quantity]}" for cost, name in named if cost)


def _listed(cost: float | None, block: int, what: str) -> float:
    if cost is None:
        raise CostTableError(f"cost table: block {block} lists nothing as wide as {what}; measure that as well")
    return cost
