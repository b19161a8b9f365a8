"""What methods that rank units share: scores, a plan within the budget, and the trained model.

Such a method scores every unit: QK and VO dimensions of heads, heads, neurons, and channels of the embedding. The units
of the lowest scores are removed; all other weights stay those of the base. The grouping says which are ranked together:

    uniform      those of one kind in one block: every kind loses the same share in every block
    isomorphic   those of one kind in all blocks (Isomorphic Pruning, Fang et al., ECCV 2024): kinds lose one share
    global       all units, by score per MAC

All heads of a block have one width. Dimensions of a head are sorted by score; the i-th ones of all heads are one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from edgevit.baselines.common.importance import Scores
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, Widths, fit
from edgevit.derivation.allocate.widths import Curve, widths_by_error
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.problem import (
    Derived,
    Problem,
    distillation_for,
    facts_of_training,
    score_on_validation,
    train_for,
)
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.embedding import channel_encoder
from edgevit.errors import BudgetError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS, SITE_AXES, WIDTHS
from edgevit.train.settings import usual_steps

Grouping = Literal["uniform", "isomorphic", "global"]
AttentionUnits = Literal["widths", "heads", "both"]
_SHARES = 40  # steps of the search for the share of heads and channels to remove
_UNUSED = 2  # penalty of leaving a share of the budget unused, relative to a mismatch of shares of that size
_NARROWEST = 1 / 8  # smallest share of the embedding's width
_KINDS = (*WIDTHS, "heads", "embed")


@dataclass(frozen=True)
class Units:
    """Which units may be removed, and how they are ranked."""

    grouping: Grouping
    attention: AttentionUnits  # which units of attention: dimensions of every head, whole heads, or both
    embed: bool  # whether channels of the embedding may be removed


@dataclass(frozen=True)
class Ranked:
    """The sizes that were chosen: the heads of each block, its widths, and the width of the embedding."""

    heads: Sequence[tuple[int, ...]]
    dims: Sequence[BlockDims]
    embed: int


def top(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the highest scores along the last dimension, ascending, first of ties: [..., count]."""
    return scores.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(dim=-1).values


class _Counts:
    """How many units of each kind remain when a share of all is removed."""

    def __init__(self, scores: Scores, dims: Sequence[BlockDims], geometry: Geometry, units: Units) -> None:
        self.dims, self.units, self.embed = dims, units, geometry.embed
        self.remaining_at = cache(self._remaining_at)
        self.curves: dict[tuple[str, int], Curve] = {}
        removable = [*SITE_AXES["ffn"]]
        removable += HEAD_WIDTHS if units.attention != "heads" else ()
        removable += ("heads",) if units.attention != "widths" else ()
        for i, (of_block, placed) in enumerate(zip(scores.blocks, geometry.placed(dims), strict=True)):
            for axis in (axis for axis in removable if placed.dims[axis]):
                summed = _by_place(of_block[axis]) if axis in HEAD_WIDTHS else of_block[axis]
                self._add(axis, i, summed, placed.unit_cost(axis, "macs"))
        if units.embed:  # a channel's cost has no products of tokens with tokens; it has its patch weights
            per_channel = geometry.macs(dims) - geometry.with_embed(geometry.embed - 1).macs(dims)
            self._add("embed", 0, scores.embed, per_channel)
        ranked = [_KINDS] if units.grouping == "global" else [(kind,) for kind in _KINDS]
        groups = ([key for key in self.curves if key[0] in kinds] for kinds in ranked)
        self.ranked = [(keys, widths_by_error([self.curves[key] for key in keys])) for keys in groups if keys]

    def _add(self, kind: str, block: int, scores: Tensor, unit_cost: int) -> None:
        self.curves[kind, block] = Curve(scores.double().sort(descending=True).values, unit_cost)

    def _remaining_at(self, share: float) -> dict[tuple[str, int], float]:
        """Count the remaining units by kind and block; the embedding counts as block 0."""
        if self.units.grouping == "uniform":
            return {key: len(curve.error) * (1 - share) for key, curve in self.curves.items()}
        return {key: n for keys, widths_at in self.ranked for key, n in zip(keys, widths_at(share), strict=True)}

    def wishes(self, share: float) -> list[Widths]:
        remaining = self.remaining_at(share)
        return [{axis: remaining.get((axis, i), d[axis]) for axis in WIDTHS} for i, d in enumerate(self.dims)]


def _by_place(scores: Tensor) -> Tensor:
    """Sort the scores of each head in falling order, and sum over the heads: [H, w] to [w]."""
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
    """Choose how many units of each kind remain within the budget.

    For each share of heads and channels to remove, `fit` finds the widths that then meet the budget. The chosen share
    is the one at which the widths lose about that share as well, and the budget is used.

    Args:
        geometry_at: gives the geometry at a width of the embedding.
        embed: the current width of the embedding.

    Raises:
        BudgetError: the budget cannot be met.
    """
    whole = geometry_at(embed)
    counts = _Counts(scores, dims, whole, units)
    if units.attention == "widths" and not units.embed:
        heads = [tuple(range(d.heads)) for d in dims]
        return Ranked(heads, fit(counts.wishes, dims, whole, budget, policy), embed)
    minimum = budget.at_least or {}
    refused, best, best_gap = None, None, 1.0
    for share in (k / _SHARES for k in range(_SHARES)):
        remaining = counts.remaining_at(share)
        geometry = geometry_at(_embed_width(counts, share, policy, budget.least_embed))
        fewer = [_fewer_heads(i, d, remaining, policy, whole, minimum.get(i)) for i, d in enumerate(dims)]
        try:
            chosen = fit(counts.wishes, fewer, geometry, budget, policy)
        except BudgetError as error:
            refused = error
            continue
        excess = _mean_share_cut(fewer, chosen, units) - _mean_share_cut(fewer, counts.wishes(share), units)
        gap = max(abs(excess), _UNUSED * (1 - budget.cost(chosen, geometry) / budget.limit))
        if best is None or gap < best_gap:
            heads = [tuple(top(b["heads"], d.heads).tolist()) for b, d in zip(scores.blocks, chosen, strict=True)]
            best, best_gap = Ranked(heads, chosen, geometry.embed), gap
        if excess <= 0:
            break
    if best is None:
        assert refused is not None
        raise refused
    return best


def narrowest_by_rank(embed: int, policy: Policy) -> int:
    """Return the least width to which an embedding of this width is cut."""
    return min(max(round(_NARROWEST * embed / policy.embed_step) * policy.embed_step, policy.embed_step, 2), embed)


def _embed_width(counts: _Counts, share: float, policy: Policy, least: int) -> int:
    """Return the embedding's width when a share is removed, at least `least`, the budget's narrowest."""
    if not counts.units.embed or share == 0:
        return counts.embed
    step, channels = policy.embed_step, counts.remaining_at(share)["embed", 0]
    return min(max(round(channels / step) * step, narrowest_by_rank(counts.embed, policy), least), counts.embed)


def _fewer_heads(
    block: int,
    dims: BlockDims,
    remaining: dict[tuple[str, int], float],
    policy: Policy,
    geometry: Geometry,
    at_least: BlockDims | None,
) -> BlockDims:
    may_go = ("heads", block) in remaining and "heads" not in geometry.frozen(block)
    least = max(least_heads(dims, policy, drop_heads=may_go), at_least.heads if at_least is not None else 0)
    return replace(dims, heads=max(round(remaining.get(("heads", block), dims.heads)), least))


def _mean_share_cut(before: Sequence[BlockDims], after: Sequence[BlockDims | Widths], units: Units) -> float:
    """Average the shares that the widths lost, over the widths that may be cut."""
    axes = SITE_AXES["ffn"] if units.attention == "heads" else WIDTHS
    pairs = zip(before, after, strict=True)
    shares: list[float] = [1 - new[axis] / width for old, new in pairs for axis in axes if (width := old[axis])]
    return sum(shares) / len(shares)


# -- from scores to the trained model ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankOptions:
    """The options of every method that ranks units: its Config inherits them."""

    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform), those of one
    # kind in all blocks (isomorphic), or all units, by score per MAC (global).
    grouping: Grouping = "isomorphic"
    # Which units of attention are removed: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "widths"
    cut_embedding: bool = False  # Whether channels of the embedding are removed, too.


def search_space(network: Network, options: RankOptions, policy: Policy) -> SearchSpace:
    """Say what a method that ranks units may remove."""
    geometry = network.geometry
    may_go = options.cut_embedding and geometry.fixed_channels is None
    embed = narrowest_by_rank(geometry.embed, policy) if may_go else 0
    more = {"cut_embedding": True, "attention": "both"}
    by_heads = options.attention != "widths"
    return SearchSpace(head_widths=options.attention != "heads", heads=by_heads, embed=embed, more=more)


def default_steps(config: object, rate: float, images: int, batch_size: int) -> int:
    """Count the steps of the training after the cut: the same for all options and rates."""
    return usual_steps(images, batch_size)


@torch.no_grad()
def plan_of(network: Network, scores: Scores, ranked: Ranked) -> Plan:
    """Plan to keep the units of the highest scores."""
    plans = []
    blocks = network.read()
    for i, (block, of, heads, dims) in enumerate(zip(blocks, scores.blocks, ranked.heads, ranked.dims, strict=True)):
        attended, rows = None, list(heads)
        if block.attention is not None:
            slim = block.attention.keep(rows, *(top(of[axis][rows], dims[axis]) for axis in HEAD_WIDTHS))
            attended = AttentionPlan.of(dims, heads, weights=slim)
        neurons = None if block.ffn is None else FfnPlan(top(of["ffn"], dims.ffn))
        plans.append(BlockPlan(i, attended, neurons, block.tokens, block.merged))
    whole = len(scores.embed)
    if ranked.embed == whole:
        return Plan(tuple(plans))
    return Plan(tuple(plans), EmbedPlan(ranked.embed, (channel_encoder(top(scores.embed, ranked.embed), whole),)))


def choose_units(problem: Problem, options: RankOptions, scores: Scores, budget: Budget | None = None) -> Ranked:
    """Spend the problem's budget, or another one, by rank.

    Raises:
        BudgetError: the budget cannot be met.
    """
    network = problem.network
    geometry = network.geometry
    if options.cut_embedding and geometry.fixed_channels is not None:
        problem.progress.note(f"the embedding stays as it is: {geometry.fixed_channels}")
    units = Units(options.grouping, options.attention, options.cut_embedding and geometry.fixed_channels is None)

    dims = list(network.dims)
    with problem.stopwatch.stage("allocation"):
        geometry_at, budget = cache(network.geometry_at), budget or problem.budget
        return rank(scores, dims, geometry_at, geometry.embed, budget, problem.policy, units)


def derive_by_rank(problem: Problem, options: RankOptions, scores: Scores) -> Derived:
    """Remove the units of the lowest scores, then train."""
    return finish(problem, plan_of(problem.network, scores, choose_units(problem, options, scores)))


def finish(
    problem: Problem, plan: Plan, change: Callable[[Network], None] | None = None, **more_facts: object
) -> Derived:
    """Realise a plan, train the network and keep its best state on the validation part.

    Args:
        change: changes the network's weights before it is trained.
        more_facts: added to `Derived.facts`.
    """
    slim = realise(problem.network.to(problem.compute.device), plan)
    if change is not None:
        change(slim)
    before = score_on_validation(problem, slim)
    distillation = distillation_for(problem, embed=plan.embed)
    done = train_for(problem, slim, distillation=distillation, keep="best")
    facts: dict[str, object] = {
        **facts_of_training(problem, "train", done),
        "accuracy_validation_cut": before,
        "kept_blocks": plan.kept_blocks,
        "kept_heads": [[] if b.attention is None else list(b.attention.heads) for b in plan.blocks],
        **({} if plan.embed is None else {"embed": plan.embed.width}),
        **more_facts,
    }
    return Derived(slim, plan, facts)
