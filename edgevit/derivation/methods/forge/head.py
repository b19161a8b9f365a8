"""Fit the head to the base's outputs on the slim network's features, without labels.

For logits, L-BFGS in fp64 minimises the mean KL(base || network) over the images plus a ridge towards the present
weights: a convex problem of a few hundred to a few thousand unknowns. Features, those of tokens one by one, are fitted
by ridge regression towards the present weights. The ridge is chosen on the validation images. A model with two heads
has their mean as its output, so both are fitted at once.
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
from edgevit.network.output import Logits
from edgevit.train.passes import Passes

_RIDGES = (1e-3, 1e-2, 1e-1)  # ridges to choose from, in units of the features' mean square
ROUNDS = 100  # iterations of L-BFGS


@dataclass(frozen=True)
class Taught:
    """Images with the base's outputs for them: [images, outputs]."""

    images: Split
    outputs: Tensor


def refit_head(network: Network, train: Taught, judge: Taught, passes: Passes) -> float:
    """Fit the rows that count in place, the same in all processes; return the divergence on `judge`."""
    heads, output = network.classifiers, network.output
    rows = torch.as_tensor(output.columns) if isinstance(output, Logits) else torch.arange(heads[0].out_features)
    fit = _of_logits if isinstance(output, Logits) else _of_features
    before = torch.cat([_affine(head)[rows] for head in heads], dim=1) / len(heads)
    features, validation = (_features(network, heads, part.images, passes) for part in (train, judge))
    target = train.outputs[..., rows].double()
    fits = [
        fit(before, features.flatten(0, -2), target.flatten(0, -2), ridge * features.square().mean())
        for ridge in _RIDGES
    ]
    outputs = judge.outputs.double()
    losses = [divergence(output, outputs, outputs.index_copy(-1, rows, validation @ fit.mT)) for fit in fits]
    best = fits[losses.index(min(losses))] * len(heads)
    for head, matrix in zip(heads, best.chunk(len(heads), dim=1), strict=True):
        head.weight.data[rows] = matrix[:, :-1].to(head.weight)
        if head.bias is not None:
            head.bias.data[rows] = matrix[:, -1].to(head.bias)
    return min(losses)


def _features(network: Network, heads: Sequence[nn.Linear], images: Split, passes: Passes) -> Tensor:
    """Return [x 1] of every head side by side, with 0 for 1 if it has no bias: [images, ..., D] in fp64 on the CPU."""
    features: list[list[Tensor]] = [[] for _ in heads]

    def add(head: int, inputs: Any, _: Tensor) -> None:
        features[head].append(F.pad(inputs[0].double().cpu(), (0, 1), value=float(heads[head].bias is not None)))

    replace(passes, shared=False).run(network, images, lambda *_: None, [(heads, add)])
    return torch.cat([torch.cat(batches) for batches in features], dim=-1)


def _affine(head: nn.Linear) -> Tensor:
    """Return [W b] in fp64 on the CPU: [rows, d + 1]."""
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias.detach().cpu()
    return torch.cat([head.weight.detach().cpu(), bias.unsqueeze(1)], dim=1).double()


@torch.enable_grad()
def _of_logits(before: Tensor, features: Tensor, logits: Tensor, lift: Tensor) -> Tensor:
    """Find the weights [C, D] of least loss. Shapes: features [images, D], logits [images, C]; the ridge is `lift`."""
    weights, target = before.clone().requires_grad_(), logits.log_softmax(1)
    search: Any = torch.optim.LBFGS([weights], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        answers = (features @ weights.mT).log_softmax(1)
        total = F.kl_div(answers, target, log_target=True, reduction="batchmean")
        total = total + lift * (weights - before).square().sum()
        (weights.grad,) = torch.autograd.grad(total, [weights])
        return total

    search.step(loss)
    return weights.detach()


def _of_features(before: Tensor, features: Tensor, target: Tensor, lift: Tensor) -> Tensor:
    """Fit the head to least squared errors, each output by itself, so that units do not matter."""
    moment = features.mT @ features / len(features)
    moment.diagonal().add_(lift)
    error = (target - features @ before.mT).mT @ features / len(features)
    solved: Tensor = torch.linalg.solve(moment, error, left=False)
    return before + solved
