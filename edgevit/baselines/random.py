"""Remove random units, the same share everywhere, as a lower bound (Gadhikar et al., 2023; the baseline of Vulcan).

Every block loses the same share of q, v and e. The units are drawn by the training's seed: a row of W_Q with the same
row of W_K, a row of W_V with its column of W_O, a whole neuron. W_Q is scaled by sqrt(q' / q), since logits are divided
by sqrt(q'). The source keeps all heads and the embedding; here they can be removed, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, unit_shapes
from edgevit.baselines.common.ranked import Grouping, RankOptions
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform, the source),
    # those of one kind in all blocks (isomorphic), or all units, by score per MAC (global).
    grouping: Grouping = "uniform"


def derive(problem: Problem, config: Config) -> Derived:
    generator = torch.Generator().manual_seed(problem.training.seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    blocks = [{axis: drawn(*shape) for axis, shape in unit_shapes(dims).items()} for dims in problem.network.dims]
    scores = Scores(blocks, drawn(problem.network.geometry.embed))
    return ranked.derive_by_rank(problem, config, scores)


METHOD = Method(Config, ranked.default_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
