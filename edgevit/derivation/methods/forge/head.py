"""The classifier fitted again to the base's answers, for the features that a slim network has; no label is looked at.

The least mean KL(base || network) over the images, and of what draws the weights to those there are: convex, of a few
hundred to a few thousand unknowns, by L-BFGS in fp64. How strongly they are drawn is chosen on the validation images.
A model with two heads answers with the mean of both, so both are fitted at once.
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
from edgevit.network.families import family_of
from edgevit.train.passes import Passes

RIDGES = (1e-3, 1e-2, 1e-1)  # in units of the features' mean square
ROUNDS = 100  # of the search


@dataclass(frozen=True)
class Taught:
    """Images with the base's `answers` to them: [images, columns]."""

    images: Split
    answers: Tensor


def refit_head(network: nn.Module, train: Taught, judge: Taught, columns: Sequence[int], passes: Passes) -> float:
    """Fit the rows of these columns in place, in every process alike; return the divergence on the judge's images."""
    heads, rows = family_of(network).classifiers(network), torch.as_tensor(columns)
    before = torch.cat([_affine(head)[rows] for head in heads], dim=1) / len(heads)
    features, unseen = (_features(network, heads, taught.images, passes) for taught in (train, judge))
    fits = [_fitted(before, features, train.answers, ridge) for ridge in RIDGES]
    losses = [divergence(judge.answers, (unseen @ fit.mT).log_softmax(1)) for fit in fits]
    best = fits[losses.index(min(losses))] * len(heads)
    for head, matrix in zip(heads, best.chunk(len(heads), dim=1), strict=True):
        head.weight.data[rows] = matrix[:, :-1].to(head.weight)
        if head.bias is not None:
            head.bias.data[rows] = matrix[:, -1].to(head.bias)
    return min(losses)


def _features(network: nn.Module, heads: Sequence[nn.Linear], images: Split, passes: Passes) -> Tensor:
    """[x 1] of every head, side by side, the one left out where it has no bias: [images, D] in fp64 on the CPU."""
    seen: list[list[Tensor]] = [[] for _ in heads]

    def see(head: int, inputs: Any, _: Tensor) -> None:
        seen[head].append(F.pad(inputs[0].double().cpu(), (0, 1), value=float(heads[head].bias is not None)))

    replace(passes, shared=False).run(network, images, lambda *_: None, [(heads, see)])
    return torch.cat([torch.cat(batches) for batches in seen], dim=1)


def _affine(head: nn.Linear) -> Tensor:
    """[W b] in fp64 on the CPU: [rows, d + 1]."""
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias.detach().cpu()
    return torch.cat([head.weight.detach().cpu(), bias.unsqueeze(1)], dim=1).double()


@torch.enable_grad()
def _fitted(before: Tensor, features: Tensor, taught: Tensor, ridge: float) -> Tensor:
    """The weights [C, D] of least loss, from those there are. Shapes: features [images, D], taught [images, C]."""
    weights = before.clone().requires_grad_()
    search: Any = torch.optim.LBFGS([weights], max_iter=ROUNDS, line_search_fn="strong_wolfe")
    lift = ridge * features.square().mean()

    def loss() -> Tensor:
        found = (features @ weights.mT).log_softmax(1)
        total = F.kl_div(found, taught, log_target=True, reduction="batchmean")
        total = total + lift * (weights - before).square().sum()
        (weights.grad,) = torch.autograd.grad(total, [weights])
        return total

    search.step(loss)
    return weights.detach()
