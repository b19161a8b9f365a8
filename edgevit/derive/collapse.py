"""Clusters of FFN neurons, and the loss that draws each member to its cluster's anchor (Vulcan, section 3.2).

A neuron i of a block is its row n_i = [W_1 b_1][i]. Once all members of a cluster equal the anchor, they can be merged
exactly by adding up their columns of W_2 (Eq. 9).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from edgevit.models.blocks import BlockWeights


@dataclass(frozen=True)
class Clusters:
    """A partition of one block's FFN neurons. Shapes: e neurons, K clusters."""

    labels: Tensor  # [e] int64: the cluster of each neuron, every one of 0..K-1 present
    anchors: Tensor  # [K] int64: the neuron that stands for each cluster, a member of it

    @property
    def anchor_of(self) -> Tensor:
        """For each neuron, its cluster's anchor: [e]."""
        return self.anchors[self.labels]

    @property
    def collapsing(self) -> int:
        """Number of clusters with two or more members."""
        return int((torch.bincount(self.labels, minlength=len(self.anchors)) > 1).sum())


def neurons(block: BlockWeights) -> Tensor:
    """Rows [W_1 b_1]: [e, d + 1], or [e, d] without a bias."""
    return block.w1 if block.b1 is None else torch.cat([block.w1, block.b1.unsqueeze(1)], dim=1)


def largest_members(labels: Tensor, scores: Tensor, count: int) -> Tensor:
    """For each of `count` clusters the member with the largest score, the first of equals: [count]."""
    descending = torch.argsort(scores, stable=True, descending=True)
    place = torch.empty_like(descending)
    place[descending] = torch.arange(len(descending), device=descending.device)  # 0 for the largest score
    first = torch.full((count,), len(labels), dtype=torch.int64, device=labels.device)
    return descending[first.scatter_reduce_(0, labels, place, "amin")]


def _fill_empty(labels: Any, count: int) -> Any:
    """Give every empty cluster a member of the largest one; k-means leaves some empty when neurons coincide."""
    import numpy as np

    sizes = np.bincount(labels, minlength=count)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        labels[np.flatnonzero(labels == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return labels


def cluster_neurons(block: BlockWeights, count: int, seed: int) -> Tensor:
    """Cluster the rows [W_1 b_1] by k-means into exactly `count` clusters: labels [e].

    The identity when nothing is to be merged.
    """
    rows = neurons(block).detach().float().cpu().numpy()
    if count >= len(rows):
        return torch.arange(len(rows))
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct neurons than clusters: filled below
        labels = KMeans(count, n_init=1, max_iter=50, random_state=seed).fit(rows).labels_
    return torch.from_numpy(_fill_empty(labels.astype("int64"), count))


def make_clusters(labels: Tensor, scores: Tensor) -> Clusters:
    """Choose each cluster's anchor: its member with the largest score (Eq. 4, i*)."""
    count = int(labels.max()) + 1
    return Clusters(labels, largest_members(labels, scores, count))


def to_device(clusters: Clusters, device: torch.device) -> Clusters:
    return replace(clusters, labels=clusters.labels.to(device), anchors=clusters.anchors.to(device))


class _WeightCollapse(torch.autograd.Function):
    """Sums of |n_i - n_anchor| and (n_i - n_anchor)^2 over every entry of one block's W_1 or b_1.

    Written out because autograd would keep three more copies of W_1 per block for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, anchor_of: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight, anchor_of)
        difference = weight - weight[anchor_of]
        return difference.abs().sum(), difference.square().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        absolute, square = grads
        weight, anchor_of = ctx.saved_tensors
        difference = weight - weight[anchor_of]
        pull = difference.sign().mul_(absolute).add_(difference.mul_(2 * square))  # zero at the anchors
        return pull.index_add(0, anchor_of, pull, alpha=-1), None


def weight_collapse(block: BlockWeights, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """Distance of every neuron's weights to its anchor's, as (sum of absolutes, sum of squares): Eq. 4 and 8."""
    anchor_of = clusters.anchor_of
    absolute, square = _WeightCollapse.apply(block.w1, anchor_of)
    if block.b1 is not None:
        absolute_b, square_b = _WeightCollapse.apply(block.b1, anchor_of)
        absolute, square = absolute + absolute_b, square + square_b
    return absolute, square


def activation_collapse(activations: Tensor, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """The same for activations [e], each the token sum averaged over a batch: Eq. 4 with nu = a."""
    difference = activations - activations[clusters.anchor_of]
    return difference.abs().sum(), difference.square().sum()


def merge(block: BlockWeights, clusters: Clusters) -> BlockWeights:
    """Merge every cluster into its anchor by adding up the columns of W_2 (Eq. 9); exact once they have collapsed."""
    w2 = block.w2.new_zeros(block.w2.shape[0], len(clusters.anchors)).index_add_(1, clusters.labels, block.w2)
    b1 = None if block.b1 is None else block.b1[clusters.anchors]
    return replace(block, w1=block.w1[clusters.anchors], b1=b1, w2=w2)
