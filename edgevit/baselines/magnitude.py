"""Remove units with small weights, by the sum of |w|^p over all weights of a unit, ranked within each kind.

No images are needed before the training. With p = 2 this is the group-wise L2 norm of DepGraph (Fang et al., CVPR 2023)
with isomorphic pruning, with sums in place of means over a group. NuWa compares itself with a baseline without training
that it calls Numerical and does not describe; by its name it is this one with --steps 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import group_sums, valued
from edgevit.baselines.common.ranked import RankOptions
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.errors import OptionError

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config(RankOptions):
    order: float = 2.0  # The power p of the weights' absolute values.

    def __post_init__(self) -> None:
        if not 0 < self.order < inf:
            raise OptionError(f"magnitude.order={self.order:g} is not a number above 0; try 2")


def derive(problem: Problem, config: Config) -> Derived:
    scores = group_sums(valued(problem.network, lambda _, w: w.abs() ** config.order))
    return ranked.derive_by_rank(problem, config, scores)


METHOD = Method(Config, ranked.default_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
