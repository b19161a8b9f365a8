"""Wanda (ICLR 2024) for structures: remove units of small weights times the norm of their inputs; train nothing.

Wanda scores a single weight by |W_ij| |x_j|, with the norm over the calibration tokens. For structures (Wanda-sp), the
score of a unit is the sum over its weights: |h_j| sum_i |W_2,ij| for a neuron; the same over a column of W_O and the
attended value for a VO dimension; sum_j (|W_Q,ij| + |W_K,ij|) |x_j| for a QK dimension, x the attention's normalised
input. Units are ranked within their block, and every block loses the same share. The sources cut whole heads, as
`attention=heads` does by the sum over a head's VO dimensions, and do not define a score for QK dimensions or for
channels of the embedding; here a channel's is |x_j| sum_i |W_ij| over all attention layers that read it. The remaining
weights are those of the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, unit_scores
from edgevit.baselines.common.ranked import Grouping, RankOptions
from edgevit.derivation.measure.thinning import every_token
from edgevit.derivation.method import Method, no_steps
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.anatomy import Block
from edgevit.numbers import COUNT, check_number

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform, the source),
    # those of one kind in all blocks (isomorphic), or all units, by score per MAC (global).
    grouping: Grouping = "uniform"
    calibration_images: int = 256  # The number of training images for the norms.

    def __post_init__(self) -> None:
        check_number("wanda.calibration_images", self.calibration_images, COUNT)


def weighed(block: Block, inputs: Tensor, attended: Tensor, hidden: Tensor) -> UnitScores:
    """Score the units of a block by norms of the attention's input [d], of attended values [H v] and of neurons [e]."""
    dimensions = list[Tensor]()
    ffn = torch.empty(0, dtype=torch.float64)
    if (a := block.attention) is not None:
        of_queries = sum(
            (w.detach().double().abs() @ inputs for w in (a.wq, a.wk)), torch.zeros((), dtype=torch.float64)
        )
        of_values = a.wo.detach().double().abs().sum(1) * attended.reshape(a.heads, a.vo)
        dimensions = [of_queries, of_values]
    if (f := block.ffn) is not None:
        ffn = f.w2.detach().double().abs().sum(0) * hidden
    return unit_scores(dimensions, ffn)


def _norms(problem: Problem, config: Config) -> list[list[Tensor]]:
    """Measure norms over tokens of the inputs of attention, W_O and W_2: [d], [H v] and [e] per block."""
    network, passes, thinning = problem.network, problem.passes, every_token(problem.network)
    sites = (
        network.attention_inputs,
        network.attention_outputs,
        network.ffn_outputs,
    )
    squares = [[torch.zeros((), dtype=torch.float64, device=problem.compute.device)] * len(s) for s in sites]

    def see(site: int) -> Any:
        def add(block: int, inputs: Any, _: Tensor) -> None:
            tokens = inputs[0].detach().double().square()
            weights = thinning.weights(tokens, None)
            weighted = tokens if weights is None else tokens * weights.view(len(tokens), -1, 1)
            squares[site][block] = squares[site][block] + weighted.sum((0, 1))

        return add

    images = problem.task.train.subset(config.calibration_images)
    observers = [(modules, see(i)) for i, modules in enumerate(sites)]
    passes.run(network, images, lambda *_: None, observers, stage="norms of activations")
    return [[passes.compute.sum(total).sqrt() for total in site] for site in squares]


def derive(problem: Problem, config: Config) -> Derived:
    network = problem.network.to(problem.compute.device).eval()
    blocks = network.read()
    with problem.stopwatch.stage("statistics"):
        inputs, attended, hidden = _norms(problem, config)
        scores = [weighed(*row) for row in zip(blocks, inputs, attended, hidden, strict=True)]
        channels = torch.zeros(blocks[-1].embed, dtype=torch.float64, device=problem.compute.device)
        for x, block in zip(inputs, blocks, strict=True):
            if (a := block.attention) is not None and block.stage == blocks[-1].stage:
                channels = channels + x * sum(w.detach().double().abs().sum((0, 1)) for w in (a.wq, a.wk, a.wv))
    return ranked.derive_by_rank(problem, config, Scores(scores, channels.cpu()))


METHOD = Method(Config, no_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
