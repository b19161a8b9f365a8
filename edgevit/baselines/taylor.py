"""Units go by the first-order change of the loss, ranked among units of the same shape (Isomorphic Pruning, ECCV 2024).

A unit is worth |sum of w dL/dw| over all weights that go with it (Molchanov et al., CVPR 2019; Taylor importance of
groups, Fang et al.), L the task's cross-entropy over calibration images. Units are ranked within their kind, over all
blocks: QK dimensions, VO dimensions, heads, neurons and channels of the embedding, each giving up the same share.

What the source leaves open, and how it is here: one gradient of all calibration images; the sum is over a group of
signed products, and `terms=each` sums their absolute values instead, as `torch_pruning` does; a channel's group is that
of the blocks and the classifier (`common.importance`). Nothing makes up for what goes, but the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import group_sums, valued, weights_times_gradients
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import AttentionUnits
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(RankOptions):
    # What of attention goes: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding go, too.
    # What is summed over a unit's weights: products with the gradient, whose sum counts (group), or their absolute
    # values (each).
    terms: Literal["group", "each"] = "group"
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images")


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.task.train.subset(config.calibration_images), problem.network
    with problem.stopwatch.stage("gradients"):
        network.to(problem.compute.device).eval()
        values = weights_times_gradients(network, images, problem.columns, problem.passes)
    if config.terms == "each":
        values = valued(values, lambda _, product: product.abs())
    return ranked.derive_by_rank(problem, config, group_sums(values).map(torch.abs))


METHOD = Method(Config, ranked.default_steps, derive, cuts=ranked.cuts, cuts_half_blocks=True)
