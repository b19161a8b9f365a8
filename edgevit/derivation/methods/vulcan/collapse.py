"""Clusters of FFN neurons, and the loss that makes the members of a cluster equal (Vulcan, section 3.2).

Neuron i of a block is its row n_i = [W_1 b_1][i]. Each cluster has one of its members as its anchor. Once all members
equal the anchor, adding up their columns of W_2 merges them exactly (Eq. 9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from edgevit.network.anatomy import Ffn

_KMEANS_STEPS = 50


@dataclass(frozen=True)
class Clusters:
    """A partition of one block's FFN neurons. Shapes: e neurons, K clusters."""

    labels: Tensor  # [e] int64: the cluster of each neuron, every one of 0..K-1 present
    anchors: Tensor  # [K] int64: the anchor of each cluster, one of its members

    @property
    def anchor_of(self) -> Tensor:
        """Return the anchor of each neuron's cluster: [e]."""
        return self.anchors[self.labels]

    @property
    def collapsing(self) -> int:
        """Count the clusters with two or more members."""
        return int((torch.bincount(self.labels, minlength=len(self.anchors)) > 1).sum())


def neurons(part: Ffn) -> Tensor:
    """Return rows [W_1 b_1], or [W_1 b_1 W_g b_g] of a gated FFN, without biases that it lacks: [e, m]."""
    inputs = part.inputs()
    return part.w1 if len(inputs) == 1 else torch.cat([t.reshape(part.neurons, -1) for t in inputs], dim=1)


def largest_members(labels: Tensor, scores: Tensor, count: int) -> Tensor:
    """Find the member of each of `count` clusters with the largest score, the first of equals: [count]."""
    descending = torch.argsort(scores, stable=True, descending=True)
    ranks = torch.empty_like(descending)
    ranks[descending] = torch.arange(len(descending), device=descending.device)  # 0 for the largest score
    first = torch.full((count,), len(labels), dtype=torch.int64, device=labels.device)
    return descending[first.scatter_reduce_(0, labels, ranks, "amin")]


def _fill_empty(labels: Tensor, count: int) -> Tensor:
    """Move a member of the largest cluster into each empty one, which k-means leaves where neurons coincide."""
    sizes = torch.bincount(labels, minlength=count)
    for empty in (sizes == 0).nonzero().flatten().tolist():
        largest = int(sizes.argmax())
        labels[(labels == largest).nonzero()[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return labels


def _spread(distances: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Choose `count` rows as starting centres by greedy k-means++ from all squared distances [e, e]."""
    trials = 2 + int(log(count))
    chosen = [int(torch.randint(len(distances), (), generator=generator))]
    nearest = distances[chosen[0]]
    for _ in range(count - 1):
        cumulated = nearest.cumsum(0)
        drawn = torch.rand(trials, generator=generator) * cumulated[-1]
        candidates = torch.searchsorted(cumulated, drawn).clamp_max(len(distances) - 1)
        remaining = torch.minimum(nearest, distances[candidates])
        best = int(remaining.sum(1).argmin())
        chosen.append(int(candidates[best]))
        nearest = remaining[best]
    return torch.tensor(chosen)


def cluster_neurons(part: Ffn, count: int, seed: int) -> Tensor:
    """Cluster the rows of `neurons` by k-means into exactly `count` clusters: labels [e].

    All distances follow from the rows' inner products, because the product of a centre and a row is the mean of the
    members' products with it. A Lloyd step then costs e^2 additions instead of 2 e K d multiplications, and a k-means++
    step only reads the matrix. If `count` is the number of rows, each row is its own cluster.
    """
    rows = neurons(part).detach().float().cpu()
    if count >= len(rows):
        return torch.arange(len(rows))
    rows = rows - rows.mean(0)  # distances are differences of inner products: the smaller, the more exact
    products = rows @ rows.mT
    squares = products.diagonal()
    distances = (squares + squares.unsqueeze(1)).sub_(products, alpha=2).clamp_min_(0).fill_diagonal_(0)
    centres = _spread(distances, count, torch.Generator().manual_seed(seed))
    labels = distances[centres].argmin(0)
    del distances
    for _ in range(_KMEANS_STEPS):
        sizes = torch.bincount(labels, minlength=count)
        # inner products of centres and rows: [K, e]
        with_rows = torch.zeros(count, len(rows)).index_add_(0, labels, products).div_(sizes.clamp_min(1).unsqueeze(1))
        of_own = with_rows[labels, torch.arange(len(rows))]
        centre_squares = torch.zeros(count).index_add_(0, labels, of_own).div_(sizes)  # not a number where empty
        nearer = with_rows.mul_(-2).add_(centre_squares.nan_to_num_(torch.inf).unsqueeze(1)).argmin(0)
        if torch.equal(nearer, labels):
            break
        labels = nearer
    return _fill_empty(labels, count)


def make_clusters(labels: Tensor, scores: Tensor) -> Clusters:
    """Choose each cluster's anchor: its member with the largest score (Eq. 4, i*)."""
    count = int(labels.max()) + 1
    return Clusters(labels, largest_members(labels, scores, count))


def to_device(clusters: Clusters, device: torch.device) -> Clusters:
    return replace(clusters, labels=clusters.labels.to(device), anchors=clusters.anchors.to(device))


class _WeightCollapse(torch.autograd.Function):
    """Sum |n_i - n_anchor| and (n_i - n_anchor)^2 over the entries of one block's W_1 or b_1.

    The backward pass is written by hand: autograd would keep three more copies of W_1 per block.
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


def weight_collapse(part: Ffn, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """Sum the distances of all neurons to their anchors, as (absolute values, squares): Eq. 4 and 8."""
    anchor_of = clusters.anchor_of
    absolute, square = _WeightCollapse.apply(part.w1, anchor_of)
    for tensor in part.inputs()[1:]:
        more_absolute, more_square = _WeightCollapse.apply(tensor, anchor_of)
        absolute, square = absolute + more_absolute, square + more_square
    return absolute, square
