"""Fit the classifier to the base's answers on the slim network's features, without labels.

L-BFGS in fp64 minimises the mean KL(base || network) over the images plus a ridge towards the present weights: a convex
problem of a few hundred to a few thousand unknowns. The ridge is chosen on the validation images. A model with two
heads answers with their mean, so both are fitted at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.divergence import divergence
from edgevit.network.network import Network
from edgevit.train.passes import Passes

RIDGES = (1e-3, 1e-2, 1e-1)  # in units of the features' mean square
ROUNDS = 100  # of L-BFGS


@dataclass(frozen=True)
class Answered:
    """Images with the base's answers to them: [images, classes]."""

    images: Split
    answers: Tensor


def refit_head(network: Network, train: Answered, judge: Answered, passes: Passes) -> float:
    """Fit the rows of the target classes in place, the same in all processes; return the divergence on `judge`."""
    heads, rows = network.classifiers, torch.as_tensor(network.columns)
    before = torch.cat([_affine(head)[rows] for head in heads], dim=1) / len(heads)
    features, validation = (_features(network, heads, part.images, passes) for part in (train, judge))
    fits = [_fitted(before, features, train.answers, ridge) for ridge in RIDGES]
    losses = [divergence(judge.answers, (validation @ fit.mT).log_softmax(1)) for fit in fits]
    best = fits[losses.index(min(losses))] * len(heads)
    for head, matrix in zip(heads, best.chunk(len(heads), dim=1), strict=True):
        head.weight.data[rows] = matrix[:, :-1].to(head.weight)
        if head.bias is not None:
            head.bias.data[rows] = matrix[:, -1].to(head.bias)
    return min(losses)


def _features(network: Network, heads: Sequence[nn.Linear], images: Split, passes: Passes) -> Tensor:
    """Return [x 1] of every head side by side, with 0 for 1 if it has no bias: [images, D] in fp64 on the CPU."""
    features: list[list[Tensor]] = [[] for _ in heads]

    def add(head: int, inputs: Any, _: Tensor) -> None:
        features[head].append(F.pad(inputs[0].double().cpu(), (0, 1), value=float(heads[head].bias is not None)))

    replace(passes, shared=False).run(network, images, lambda *_: None, [(heads, add)])
    return torch.cat([torch.cat(batches) for batches in features], dim=1)


def _affine(head: nn.Linear) -> Tensor:
    """Return [W b] in fp64 on the CPU: [rows, d + 1]."""
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias.detach().cpu()
    return torch.cat([head.weight.detach().cpu(), bias.unsqueeze(1)], dim=1).double()


@torch.enable_grad()
def _fitted(before: Tensor, features: Tensor, target: Tensor, ridge: float) -> Tensor:
    """Find the weights [C, D] of least loss. Shapes: features [images, D], target [images, C]."""
    weights = before.clone().requires_grad_()
    search: Any = torch.optim.LBFGS([weights], max_iter=ROUNDS, line_search_fn="strong_wolfe")
    lift = ridge * features.square().mean()

    def loss() -> Tensor:
        answers = (features @ weights.mT).log_softmax(1)
        total = F.kl_div(answers, target, log_target=True, reduction="batchmean")
        total = total + lift * (weights - before).square().sum()
        (weights.grad,) = torch.autograd.grad(total, [weights])
        return total

    search.step(loss)
    return weights.detach()
