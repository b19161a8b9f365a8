"""Remove units by the first-order change of the loss, ranked within their kind (Isomorphic Pruning, ECCV 2024).

The score of a unit is |sum of w dL/dw| over all of its weights (Molchanov et al., CVPR 2019; Taylor importance of
groups, Fang et al.), with L the task's cross-entropy over calibration images. Units are ranked within their kind, over
all blocks: QK dimensions, VO dimensions, heads, neurons and channels of the embedding. All kinds lose the same share.

Choices that the source leaves open: one gradient of all calibration images is taken; the signed products of a group are
summed, while `terms=each` sums their absolute values, as `torch_pruning` does; a channel's group has the weights of the
blocks and the classifier (`common.importance`). Only the training compensates for removed units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import group_sums, valued, weights_times_gradients
from edgevit.baselines.common.ranked import AttentionUnits, RankOptions
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.numbers import COUNT, check_number


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units of attention are removed: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding are removed, too.
    # What is summed over a unit's weights: their products with the gradient (group), or the absolute values of these
    # (each).
    terms: Literal["group", "each"] = "group"
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        check_number("taylor.calibration_images", self.calibration_images, COUNT)


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.task.train.subset(config.calibration_images), problem.network
    with problem.stopwatch.stage("gradients"):
        network.to(problem.compute.device).eval()
        values = weights_times_gradients(network, images, problem.passes)
    if config.terms == "each":
        values = valued(values, lambda _, product: product.abs())
    return ranked.derive_by_rank(problem, config, group_sums(values).map(torch.abs))


METHOD = Method(Config, ranked.default_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
