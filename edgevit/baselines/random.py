"""Random units go, the same share everywhere: what a method must beat (Gadhikar et al., 2023; the baseline of Vulcan).

The same share of q, v and e goes in every block, and which of them is drawn: a row of W_Q with the same row of W_K, a
row of W_V with its column of W_O, a neuron as a whole. W_Q is scaled by sqrt(q' / q), as logits are divided by
sqrt(q'). The seed of the training draws. The source keeps all heads and the embedding; here they may go, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import Grouping
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.families import family_of

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(RankOptions):
    # How far random scores are compared: nowhere, so that all is cut alike (uniform, the source), within a kind of unit
    # over all blocks (isomorphic), or all with all, by score per MAC (global).
    grouping: Grouping = "uniform"


def derive(problem: Problem, config: Config) -> Derived:
    family, generator = family_of(problem.network), torch.Generator().manual_seed(problem.training.seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    dims = [block.dims for block in family.read(problem.network)]
    blocks = [UnitScores(drawn(d.heads, d.qk), drawn(d.heads, d.vo), drawn(d.heads), drawn(d.ffn)) for d in dims]
    scores = Scores(blocks, drawn(family.geometry(problem.network).embed))
    return ranked.derive_by_rank(problem, config, scores)


METHOD = Method(Config, ranked.default_steps, derive, cuts=ranked.cuts, cuts_half_blocks=True)
