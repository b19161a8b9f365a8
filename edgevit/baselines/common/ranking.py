"""A budget spent by rank: every unit has a score, and those with the lowest go.

Units are the QK and VO dimensions of heads, heads, neurons, and channels of the embedding. How far units of different
kinds and blocks are compared with one another is the grouping:

    uniform      not at all: every kind gives up the same share in every block
    isomorphic   within a kind, over all blocks (Isomorphic Pruning, Fang et al., ECCV 2024): kinds give up one share
    global       all with all, by score per MAC

Heads of a block share one width, so its i-th QK dimension is that of the i-th place in every head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from torch import Tensor

from edgevit.baselines.common.importance import Scores
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, Widths, fit
from edgevit.derivation.allocate.widths import Curve, widths_by_error
from edgevit.errors import BudgetError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry

Grouping = Literal["uniform", "isomorphic", "global"]
AttentionUnits = Literal["widths", "heads", "both"]
SHARES = 40  # how finely the share of what goes in whole heads and channels is looked for
UNUSED = 2  # how much worse it is to leave a share of the budget than to give up that share out of turn
NARROWEST = 1 / 8  # of the embedding
KINDS = ("qk", "vo", "ffn", "heads", "embed")


@dataclass(frozen=True)
class Units:
    """What may go, and how its scores are compared."""

    grouping: Grouping
    attention: AttentionUnits  # dimensions of every head, whole heads, or both
    embed: bool  # channels of the embedding


@dataclass(frozen=True)
class Ranked:
    """How much stays: which heads of each block, how wide everything in it, and the width of the embedding."""

    heads: Sequence[tuple[int, ...]]
    dims: Sequence[BlockDims]
    embed: int


def top(scores: Tensor, count: int) -> Tensor:
    """Indices of the highest scores along the last dimension, ascending; of equal ones the first: [..., count]."""
    return scores.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(dim=-1).values


class _Counts:
    """How many units of each kind stay when a share of all goes."""

    def __init__(self, scores: Scores, dims: Sequence[BlockDims], geometry: Geometry, units: Units) -> None:
        self.dims, self.units, self.embed = dims, units, geometry.embed
        self.at = cache(self._at)  # every choice of heads begins its search at the same shares
        self.curves: dict[tuple[str, int], Curve] = {}
        for i, (block, d, n) in enumerate(zip(scores.blocks, dims, geometry.reaching(dims), strict=True)):
            unit = geometry.at(n).unit_costs(d.heads, "macs")
            heads = unit.qk * d.qk + unit.vo * d.vo
            if d.has_ffn:
                self._add("ffn", i, block.ffn, unit.ffn)
            if not d.has_attention:
                continue
            if units.attention != "heads":
                self._add("qk", i, _by_place(block.qk), unit.qk)
                self._add("vo", i, _by_place(block.vo), unit.vo)
            if units.attention != "widths":
                self._add("heads", i, block.heads, heads // d.heads)
        if units.embed:  # of what a channel costs, products of tokens with tokens are no part, and patches are
            per_channel = geometry.macs(dims) - geometry.with_embed(geometry.embed - 1).macs(dims)
            self._add("embed", 0, scores.embed, per_channel)
        ranked = [KINDS] if units.grouping == "global" else [(kind,) for kind in KINDS]
        groups = ([key for key in self.curves if key[0] in kinds] for kinds in ranked)
        self.ranked = [(keys, widths_by_error([self.curves[key] for key in keys])) for keys in groups if keys]

    def _add(self, kind: str, block: int, scores: Tensor, unit_cost: int) -> None:
        self.curves[kind, block] = Curve(scores.double().sort(descending=True).values, unit_cost)

    def _at(self, share: float) -> dict[tuple[str, int], float]:
        """The units that stay, by kind and block; the embedding's are of block 0."""
        if self.units.grouping == "uniform":
            return {key: len(curve.error) * (1 - share) for key, curve in self.curves.items()}
        return {key: n for keys, widths_at in self.ranked for key, n in zip(keys, widths_at(share), strict=True)}

    def wishes(self, share: float) -> list[Widths]:
        found = self.at(share)
        return [
            Widths(found.get(("qk", i), d.qk), found.get(("vo", i), d.vo), found.get(("ffn", i), d.ffn))
            for i, d in enumerate(self.dims)
        ]


def _by_place(scores: Tensor) -> Tensor:
    """[H, w] to [w]: the scores of each head in falling order, summed over the heads."""
    return scores.double().sort(dim=1, descending=True).values.sum(0)


def rank(
    scores: Scores,
    dims: Sequence[BlockDims],
    geometry_at: Callable[[int], Geometry],
    embed: int,
    budget: Budget,
    policy: Policy,
    units: Units,
) -> Ranked:
    """Find how much stays of every kind within the budget.

    Heads and channels go in whole steps, and widths take the rest, in the steps that the policy allows. For each share
    of heads and channels, the widths that then fit the budget are set against those that would give up that same share:
    the share is taken at which both are nearest, and the budget is used.

    Args:
        geometry_at: what costs depend on at a width of the embedding.
        embed: the embedding's width as it is.

    Raises:
        BudgetError: nothing as small as the budget is within reach.
    """
    whole = geometry_at(embed)
    counts = _Counts(scores, dims, whole, units)
    if units.attention == "widths" and not units.embed:
        heads = [tuple(range(d.heads)) for d in dims]
        return Ranked(heads, fit(counts.wishes, dims, whole, budget, policy), embed)
    stay = budget.at_least or {}
    refused, found, apart = None, None, 1.0
    for share in (k / SHARES for k in range(SHARES)):
        kept, geometry = counts.at(share), geometry_at(_embed_width(counts, share, policy, budget.least_embed))
        fewer = [_fewer_heads(i, d, kept, policy, whole, stay.get(i)) for i, d in enumerate(dims)]
        try:
            chosen = fit(counts.wishes, fewer, geometry, budget, policy)
        except BudgetError as error:
            refused = error
            continue
        over = _given_up(fewer, chosen, units) - _given_up(fewer, counts.wishes(share), units)
        off = max(abs(over), UNUSED * (1 - budget.cost(chosen, geometry) / budget.limit))
        if found is None or off < apart:
            heads = [tuple(top(b.heads, d.heads).tolist()) for b, d in zip(scores.blocks, chosen, strict=True)]
            found, apart = Ranked(heads, chosen, geometry.embed), off
        if over <= 0:
            break
    if found is None:
        assert refused is not None
        raise refused
    return found


def narrowest_by_rank(embed: int, policy: Policy) -> int:
    """The least width that an embedding of this width is given."""
    return min(max(round(NARROWEST * embed / policy.embed_step) * policy.embed_step, policy.embed_step, 2), embed)


def _embed_width(counts: _Counts, share: float, policy: Policy, least: int) -> int:
    """The embedding's width where a share goes; `least`: the narrowest that the budget asks for, or can count."""
    if not counts.units.embed or share == 0:
        return counts.embed
    step, kept = policy.embed_step, counts.at(share)["embed", 0]
    return min(max(round(kept / step) * step, narrowest_by_rank(counts.embed, policy), least), counts.embed)


def _fewer_heads(
    block: int,
    dims: BlockDims,
    kept: dict[tuple[str, int], float],
    policy: Policy,
    geometry: Geometry,
    at_least: BlockDims | None,
) -> BlockDims:
    may_go = ("heads", block) in kept and "heads" not in geometry.frozen(block)
    least = max(least_heads(dims, policy, drop_heads=may_go), at_least.heads if at_least is not None else 0)
    return replace(dims, heads=max(round(kept.get(("heads", block), dims.heads)), least))


def _given_up(before: Sequence[BlockDims], after: Sequence[BlockDims | Widths], units: Units) -> float:
    """The mean share of the widths that went, of those that may."""
    names = ("ffn",) if units.attention == "heads" else ("qk", "vo", "ffn")
    pairs = zip(before, after, strict=True)
    shares: list[float] = [
        1 - getattr(new, name) / width for old, new in pairs for name in names if (width := getattr(old, name))
    ]
    return sum(shares) / len(shares)
