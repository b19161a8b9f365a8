"""Refit an FFN's output weights to the neurons that are kept (NuWa, OFP-MLP), from second moments alone.

With h [e] the neurons of one token, C = E[h h^T] and r the kept ones, W_2' = argmin E|W_2 h - W_2' h_r|^2 solves
W_2' C_rr = W_2 C_:r: one Cholesky factorisation of a small matrix, instead of the pseudo-inverse of a (images * tokens)
x r matrix. Where there is an output bias it is refitted, too, which makes C the covariance.

Which neurons to keep, the same moments say better than activations do: `removal_order` takes away, again and again, the
neurons whose removal costs least once the others have made up for it (optimal brain surgeon's saliency).

A ridge decides what the calibration tokens leave open. `least_squares` draws W_2' to zero; `compensate` draws it to the
columns that were there, which is optimal brain surgeon's update for the removal of all the others at once, C + ridge
being its Hessian. Without a ridge they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from edgevit.derive.factorise import one_thread
from edgevit.errors import DataError
from edgevit.models.blocks import BlockWeights

Refit = Literal["least_squares", "compensate", "remove"]


def solve(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Solve (gram + ridge * 1) X = right by Cholesky. Shapes: gram [r, r], right [r, n], fp64.

    Raises:
        DataError: it is singular in spite of the ridge, or not finite.
    """
    lower, failed = torch.linalg.cholesky_ex(gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
    if failed:
        raise DataError(
            f"the second moments of {len(gram)} neurons over the calibration images are singular (ridge {ridge:g}); "
            f"raise nuwa.ridge, or use more images"
        )
    return torch.cholesky_solve(right, lower)


def refit(
    block: BlockWeights, kept: Tensor, second: Tensor, mean: Tensor, how: Refit = "least_squares", ridge: float = 1e-4
) -> BlockWeights:
    """Keep these neurons of a block and refit its output weights and bias to them.

    `ridge` is in units of the kept neurons' mean square: a share of their variance would be nothing where few tokens
    leave no variance. Shapes: kept [r] int64; second [e, e] and mean [e], moments of the FFN after its non-linearity.
    """
    kept = kept.to(block.w1.device)
    slim = replace(block, w1=block.w1[kept], b1=None if block.b1 is None else block.b1[kept], w2=block.w2[:, kept])
    if how == "remove":
        return slim
    # Small solves where the moments are: on the CPU unless the caller put them elsewhere.
    index, w2, mean = kept.to(second.device), block.w2.detach().to(second), mean.to(second)
    centre = mean if block.b2 is not None else torch.zeros_like(mean)
    gram = second[index][:, index]
    lift = ridge * float(gram.diagonal().mean().clamp_min(torch.finfo(gram.dtype).tiny))
    gram = gram - torch.outer(centre[index], centre[index])
    with one_thread():
        if how == "least_squares":
            new = solve(gram, _cross(second, centre, index, w2), lift).mT
        else:
            lost = w2.clone()
            lost[:, index] = 0
            new = w2[:, index] + solve(gram, _cross(second, centre, index, lost), lift).mT
    bias = None if block.b2 is None else (block.b2.detach().to(w2) + w2 @ mean - new @ mean[index]).to(block.b2)
    return replace(slim, w2=new.to(block.w2), b2=bias)


@dataclass(frozen=True)
class Removal:
    """In which order neurons are best taken away, and what each costs. One order serves every width."""

    order: Tensor  # [e] int64, the first to go first
    cost: Tensor  # [e] growth of E|output error|^2 as each goes, in that order, the rest refitted; fp64

    def kept(self, width: int) -> Tensor:
        """The neurons left at this width, in their own order: [width]."""
        return self.order[len(self.order) - width :].sort().values


def removal_order(w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4, share: int = 32) -> Removal:
    """Order the neurons of a block by what their removal costs, all later ones being refitted after each group.

    With G the inverse of the neurons' covariance, removing i costs |w_i|^2 / G_ii and a set S costs
    tr(W_S G_SS^-1 W_S^T); W and G of the rest follow by the update of `compensate`. Of those left, one in `share` goes
    at a time: an update per group is a matrix product, and a whole block costs little more than inverting its
    covariance. Larger groups take away the last two of several near copies together.

    Shapes: w2 [d, e]; second [e, e] and mean [e] as for `refit`.
    """
    w, inverse = w2.detach().to(second), torch.linalg.inv(_lifted_covariance(second, mean, ridge))
    alive, order, cost = torch.arange(len(second), device=second.device), [], []
    while len(alive) > 0:
        saliency = w.square().sum(0) / inverse.diagonal()
        ranked = torch.argsort(saliency, stable=True)
        group = max(len(alive) // share, 1)
        gone, rest = ranked[:group], ranked[group:].sort().values
        # G_SS^-1 [W_S^T G_S,rest], one factorisation for the update of both
        both = torch.linalg.solve(inverse[gone][:, gone], torch.cat([w[:, gone].mT, inverse[gone][:, rest]], dim=1))
        weights = both[:, : len(w)]
        together = (weights.mT * w[:, gone]).sum()
        order.append(alive[gone])
        cost.append(saliency[gone] * (together / saliency[gone].sum().clamp_min(torch.finfo(second.dtype).tiny)))
        w = w[:, rest] - weights.mT @ inverse[gone][:, rest]
        inverse = inverse[rest][:, rest] - inverse[rest][:, gone] @ both[:, len(w) :]
        alive = alive[rest]
    return Removal(torch.cat(order), torch.cat(cost))


def removal_in_order(order: Tensor, w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4) -> Removal:
    """What a given order of removal costs: with the neurons as L z, the last ones in it span the first of z.

    So E|error|^2 of the best fit on any last r of them is the square of W_2 L beyond its first r columns.
    """
    last_first = order.flip(0)
    covariance = _lifted_covariance(second, mean, ridge)[last_first][:, last_first]
    spanned = w2.detach().to(second)[:, last_first] @ torch.linalg.cholesky(covariance)
    return Removal(order, spanned.square().sum(0).flip(0))


def _lifted_covariance(second: Tensor, mean: Tensor, ridge: float) -> Tensor:
    covariance = second - torch.outer(mean, mean)
    covariance.diagonal().add_(ridge * second.diagonal().mean().clamp_min(torch.finfo(second.dtype).tiny))
    return covariance


def _cross(second: Tensor, centre: Tensor, kept: Tensor, w2: Tensor) -> Tensor:
    """C_r: W_2^T of the centred moments: [r, d]."""
    return second[kept] @ w2.mT - torch.outer(centre[kept], w2 @ centre)
