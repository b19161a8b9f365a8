"""Wanda (ICLR 2024) by structures: units of small weights times the norm of what they are given; nothing trained.

Of single weights Wanda's score is |W_ij| |x_j|, the norm over the calibration tokens. By structures (Wanda-sp) a unit
is worth the sum over its weights: a neuron |h_j| sum_i |W_2,ij|; a VO dimension likewise, over its column of W_O, for
the attended value; a QK dimension sum_j (|W_Q,ij| + |W_K,ij|) |x_j|, x the attention's normalised input. Each is ranked
within its block, and the same share goes in every block. What the sources leave open is the QK dimension, as they cut
whole heads: `attention=heads` does, by the sum over a head's VO dimensions; and the embedding, of which a channel
would be worth |x_j| sum_i |W_ij| over all that reads it in attentions. Weights that stay are the base's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import Grouping
from edgevit.derivation.method import Method, no_steps
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.anatomy import Block
from edgevit.network.families import family_of

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(RankOptions):
    # How far scores are compared: nowhere, so that all is cut alike (uniform, the source), within a kind of unit over
    # all blocks (isomorphic), or all with all, by score per MAC (global).
    grouping: Grouping = "uniform"
    calibration_images: int = 256  # The number of training images over which norms are taken.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images")


def unit_scores(block: Block, given: Tensor, attended: Tensor, hidden: Tensor) -> UnitScores:
    """The scores of one block. Shapes: norms of the attention's input [d], of attended values [H v], of neurons [e]."""
    qk = vo = torch.empty(0, 0, dtype=torch.float64)
    ffn = torch.empty(0, dtype=torch.float64)
    if (a := block.attention) is not None:
        qk = sum((w.detach().double().abs() @ given for w in (a.wq, a.wk)), torch.zeros((), dtype=torch.float64))
        vo = a.wo.detach().double().abs().sum(1) * attended.reshape(a.heads, a.vo)
    if (f := block.ffn) is not None:
        ffn = f.w2.detach().double().abs().sum(0) * hidden
    return UnitScores(qk, vo, vo.sum(1), ffn).map(Tensor.cpu)


def _norms(problem: Problem, config: Config) -> list[list[Tensor]]:
    """Norms over tokens of what attentions, W_O and W_2 are given: [d], [H v] and [e] per block."""
    network, passes = problem.network, problem.passes
    family = family_of(network)
    sites = (family.attention_inputs(network), family.attention_outputs(network), family.ffn_outputs(network))
    squares = [[torch.zeros((), dtype=torch.float64, device=problem.compute.device)] * len(s) for s in sites]

    def see(site: int) -> Any:
        def add(block: int, given: Any, _: Tensor) -> None:
            squares[site][block] = squares[site][block] + given[0].detach().double().square().sum((0, 1))

        return add

    images = problem.task.train.subset(config.calibration_images)
    observers = [(modules, see(i)) for i, modules in enumerate(sites)]
    passes.run(network, images, lambda *_: None, observers, stage="norms of activations")
    return [[passes.compute.sum(total).sqrt() for total in site] for site in squares]


def derive(problem: Problem, config: Config) -> Derived:
    network = problem.network.to(problem.compute.device).eval()
    blocks = family_of(network).read(network)
    with problem.stopwatch.stage("statistics"):
        given, attended, hidden = _norms(problem, config)
        scores = [unit_scores(*row) for row in zip(blocks, given, attended, hidden, strict=True)]
        channels = torch.zeros(blocks[0].embed, dtype=torch.float64, device=problem.compute.device)
        for x, a in zip(given, (block.attention for block in blocks), strict=True):
            if a is not None:
                channels = channels + x * sum(w.detach().double().abs().sum((0, 1)) for w in (a.wq, a.wk, a.wv))
    return ranked.derive_by_rank(problem, config, Scores(scores, channels.cpu()))


METHOD = Method(Config, no_steps, derive, cuts=ranked.cuts, cuts_half_blocks=True)
