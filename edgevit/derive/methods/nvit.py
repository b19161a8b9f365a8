"""NViT (CVPR 2023): units of all kinds in one ranking, by the squared change of the loss, round by round.

A unit is worth (sum of w dL/dw)^2 over all weights that go with it, the mean over batches: the diagonal of the loss's
Hessian in the unit's gate, as its own squared gradient estimates it. Channels of the embedding, heads, QK and VO
dimensions and neurons are ranked together by that score per MAC; those lowest go, the loss is differentiated again
without them, and so on, round by round, until the budget is met.

Differences from the source, whose code trains between rounds, divides its scores by constants that fit DeiT-Base, and
subtracts a multiple of the latency by a table: here nothing is trained before the last round, scores are compared per
MAC, and the shape policy says in which steps dimensions go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgevit.derive import ranked
from edgevit.derive.allocate.budget import MEASURED
from edgevit.derive.allocate.ranking import AttentionUnits, Grouping
from edgevit.derive.measure.importance import squared_changes
from edgevit.derive.method import Method
from edgevit.derive.problem import Derived, Problem
from edgevit.derive.ranked import RankOptions
from edgevit.errors import OptionError

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
        for name in ("rounds", "calibration_images"):
            if getattr(self, name) < 1:
                raise OptionError(f"nvit.{name}={getattr(self, name)} is less than 1")


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Steps of the training after the cut."""
    return ranked.default_steps(images, batch_size)


def derive(problem: Problem, config: Config) -> Derived:
    images, budget = problem.task.train.subset(config.calibration_images), problem.budget
    network = problem.network.to(problem.compute.device).eval()
    for number in range(1, config.rounds + 1):
        with problem.stopwatch.stage("gradients"):
            scores = squared_changes(network, images, problem.columns, problem.passes)
        left = budget.base - (budget.base - budget.limit) * number / config.rounds
        limit = left if budget.quantity in MEASURED else int(left)
        chosen = ranked.choose_units(problem, config, scores, replace(budget, limit=limit))
        if number < config.rounds:
            network = ranked.with_zeros(network, chosen, scores)
    return ranked.finish(problem, config, ranked.plan_of(problem.network, scores, chosen))


METHOD = Method(Config, default_steps, derive, cuts=ranked.cuts, cuts_half_blocks=True)
