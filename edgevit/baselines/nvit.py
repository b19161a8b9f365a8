"""NViT (CVPR 2023): units of all kinds in one ranking, by the squared change of the loss, round by round.

A unit is worth (sum of w dL/dw)^2 over all weights that go with it, the mean over groups of images: the diagonal of
the loss's Hessian in the unit's gate, as its own squared gradient estimates it. Channels of the embedding, heads, QK
and VO dimensions and neurons are ranked together by that score per MAC; those lowest are cut out, the loss of the
network that is left is differentiated, and so on, round by round, until the budget is met. What has gone does not come
back.

Differences from the source, whose code trains between rounds, divides its scores by constants that fit DeiT-Base, and
subtracts a multiple of the latency by a table: here nothing is trained before the last round, scores are compared per
MAC, and the shape policy says in which steps dimensions go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, squared_changes
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import AttentionUnits, Grouping, Ranked, top
from edgevit.derivation.allocate.budget import MEASURED
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.realise import realise

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(RankOptions):
    # How far scores are compared: all with all, by score per MAC (global, the source), within a kind of unit over all
    # blocks (isomorphic), or nowhere, so that all is cut alike (uniform).
    grouping: Grouping = "global"
    # What of attention goes: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding go, too.
    rounds: int = 4  # The number of times that scores are taken, each with more of the budget spent.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("rounds", "calibration_images")


def _in_the_base(scores: Scores, stay: Ranked, later_scores: Scores, later_stay: Ranked) -> tuple[Scores, Ranked]:
    """Give the later scores and choice, of the network that a round left, to the units of the base that are in it.

    Units that have gone get a score below all others.

    Args:
        scores, stay: of the base, by which it was cut to that network.
    """

    def placed(old: Tensor, kept: Tensor, new: Tensor) -> Tensor:
        return torch.full_like(old, -1).scatter(-1, kept, new)  # a square is at least 0

    blocks, heads = [], []
    pairs = zip(scores.blocks, later_scores.blocks, strict=True)
    for (old, new), here, dims, there in zip(pairs, stay.heads, stay.dims, later_stay.heads, strict=True):
        rows = torch.tensor(here, dtype=torch.int64)
        qk, vo = torch.full_like(old.qk, -1), torch.full_like(old.vo, -1)
        qk[rows] = placed(old.qk[rows], top(old.qk[rows], dims.qk), new.qk)
        vo[rows] = placed(old.vo[rows], top(old.vo[rows], dims.vo), new.vo)
        blocks.append(
            UnitScores(qk, vo, placed(old.heads, rows, new.heads), placed(old.ffn, top(old.ffn, dims.ffn), new.ffn))
        )
        heads.append(tuple(here[i] for i in there))
    channels = placed(scores.embed, top(scores.embed, stay.embed), later_scores.embed)
    return Scores(blocks, channels), replace(later_stay, heads=heads)


def derive(problem: Problem, config: Config) -> Derived:
    images, budget = problem.task.train.subset(config.calibration_images), problem.budget
    base = network = problem.network.to(problem.compute.device).eval()
    # The narrowest embedding is a share of the base's, and not of what a round left.
    narrowest = max(budget.at_least_embed, ranked.cuts(base, config, problem.policy).embed)
    found: tuple[Scores, Ranked] | None = None
    for number in range(1, config.rounds + 1):
        with problem.stopwatch.stage("gradients"):
            scores = squared_changes(network, images, problem.columns, problem.passes)
        left = budget.base - (budget.base - budget.limit) * number / config.rounds
        limit = left if budget.quantity in MEASURED else int(left)
        now = replace(budget, limit=limit, at_least_embed=narrowest)
        stay = ranked.choose_units(replace(problem, network=network), config, scores, now)
        found = (scores, stay) if found is None else _in_the_base(*found, scores, stay)
        plan = ranked.plan_of(base, *found)
        if number < config.rounds:
            network = realise(base, plan)
    return ranked.finish(problem, config, plan)


METHOD = Method(Config, ranked.default_steps, derive, cuts=ranked.cuts, cuts_half_blocks=True)
