"""What methods that rank units share: the way from scores to a plan within the budget, and to the trained model.

Such a method scores every unit. The units of low score are removed; all other weights stay those of the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from edgevit.baselines.common import ranking
from edgevit.baselines.common.importance import Scores
from edgevit.baselines.common.ranking import AttentionUnits, Grouping, Ranked, Units, rank, top
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
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
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS
from edgevit.train.settings import usual_steps


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
    may_go = options.cut_embedding and geometry.fixed_embed is None
    embed = ranking.narrowest_by_rank(geometry.embed, policy) if may_go else 0
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
    return Plan(tuple(plans), EmbedPlan(ranked.embed, channel_encoder(top(scores.embed, ranked.embed), whole)))


def choose_units(problem: Problem, options: RankOptions, scores: Scores, budget: Budget | None = None) -> Ranked:
    """Spend the problem's budget, or another one, by rank.

    Raises:
        BudgetError: the budget cannot be met.
    """
    network = problem.network
    geometry = network.geometry
    if options.cut_embedding and geometry.fixed_embed is not None:
        problem.progress.note(f"the embedding stays as it is: {geometry.fixed_embed}")
    units = Units(options.grouping, options.attention, options.cut_embedding and geometry.fixed_embed is None)

    dims = list(network.dims)
    with problem.stopwatch.stage("allocation"):
        at, budget = cache(network.geometry_at), budget or problem.budget
        return rank(scores, dims, at, geometry.embed, budget, problem.policy, units)


def derive_by_rank(problem: Problem, options: RankOptions, scores: Scores) -> Derived:
    """Remove the units of the lowest scores, then train."""
    return finish(problem, plan_of(problem.network, scores, choose_units(problem, options, scores)))


def finish(problem: Problem, plan: Plan, **more_facts: object) -> Derived:
    """Realise a plan, train the network and keep its best state on the validation part.

    Args:
        more_facts: added to `Derived.facts`.
    """
    slim = realise(problem.network.to(problem.compute.device), plan)
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
