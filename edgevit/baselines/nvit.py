"""NViT (CVPR 2023): rank units of all kinds together by the squared change of the loss, and remove them in rounds.

The score of a unit is (sum of w dL/dw)^2 over all of its weights, the mean over groups of images. It estimates the
diagonal of the loss's Hessian in the unit's gate by the squared gradient. Channels of the embedding, heads, QK and VO
dimensions and neurons are ranked together by score per MAC. Each round removes the lowest ones and differentiates the
loss of the remaining network, until the budget is met. Removed units do not return.

Differences from the source: its code trains between rounds, divides scores by constants that fit DeiT-Base, and
subtracts a multiple of the latency from a table. Here nothing is trained before the last round, scores are compared per
MAC, and the shape policy sets the steps of the dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, squared_changes
from edgevit.baselines.common.ranked import AttentionUnits, Grouping, Ranked, RankOptions, top
from edgevit.derivation.allocate.budget import MEASURED
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.realise import realise
from edgevit.network.anatomy import SizeAxis
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import HEAD_WIDTHS


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform), those of
    # one kind in all blocks (isomorphic), or all units, by score per MAC (global, the source).
    grouping: Grouping = "global"
    # Which units of attention are removed: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding are removed, too.
    rounds: int = 4  # The number of rounds; each measures the scores anew and spends more of the budget.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        for name in ("rounds", "calibration_images"):
            check_number(f"nvit.{name}", getattr(self, name), COUNT)


def _in_the_base(scores: Scores, chosen: Ranked, later_scores: Scores, later_chosen: Ranked) -> tuple[Scores, Ranked]:
    """Map scores and sizes of the network of a round to the units of the base; removed units score below all others.

    Args:
        scores, chosen: those of the base, by which it was cut to that network.
        later_scores, later_chosen: those of that network.
    """

    def placed(old: Tensor, indices: Tensor, new: Tensor) -> Tensor:
        return torch.full_like(old, -1).scatter(-1, indices, new)  # a square is at least 0

    blocks, heads = list[UnitScores](), []
    pairs = zip(scores.blocks, later_scores.blocks, strict=True)
    for (old, new), base_heads, dims, later_heads in zip(
        pairs, chosen.heads, chosen.dims, later_chosen.heads, strict=True
    ):
        rows = torch.tensor(base_heads, dtype=torch.int64)
        now: dict[SizeAxis, Tensor] = {"heads": placed(old["heads"], rows, new["heads"])}
        now["ffn"] = placed(old["ffn"], top(old["ffn"], dims.ffn), new["ffn"])
        for axis in HEAD_WIDTHS:
            now[axis] = torch.full_like(old[axis], -1)
            now[axis][rows] = placed(old[axis][rows], top(old[axis][rows], dims[axis]), new[axis])
        blocks.append(now)
        heads.append(tuple(base_heads[i] for i in later_heads))
    channels = placed(scores.embed, top(scores.embed, chosen.embed), later_scores.embed)
    return Scores(blocks, channels), replace(later_chosen, heads=heads)


def derive(problem: Problem, config: Config) -> Derived:
    images, budget = problem.task.train.subset(config.calibration_images), problem.budget
    base = network = problem.network.to(problem.compute.device).eval()
    # The narrowest embedding is a share of the base's, not of the network of a round.
    narrowest = max(budget.at_least_embed, ranked.search_space(base, config, problem.policy).embed)
    total: tuple[Scores, Ranked] | None = None  # in the units of the base
    for number in range(1, config.rounds + 1):
        with problem.stopwatch.stage("gradients"):
            scores = squared_changes(network, images, problem.passes)
        exact = budget.base - (budget.base - budget.limit) * number / config.rounds
        limit = exact if budget.quantity in MEASURED else int(exact)
        now = replace(budget, limit=limit, at_least_embed=narrowest)
        chosen = ranked.choose_units(replace(problem, network=network), config, scores, now)
        total = (scores, chosen) if total is None else _in_the_base(*total, scores, chosen)
        plan = ranked.plan_of(base, *total)
        if number < config.rounds:
            network = realise(base, plan)
    return ranked.finish(problem, plan)


METHOD = Method(Config, ranked.default_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
