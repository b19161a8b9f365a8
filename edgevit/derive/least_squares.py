"""Refit an FFN's output weights to the neurons that are kept (NuWa, OFP-MLP), from second moments alone.

With h [e] the neurons of one token, C = E[h h^T] and r the kept ones, W_2' = argmin E|W_2 h - W_2' h_r|^2 solves
W_2' C_rr = W_2 C_:r: one Cholesky factorisation of a small matrix, instead of the pseudo-inverse of a (images * tokens)
x r matrix. Where there is an output bias it is refitted, too, which makes C the covariance.

A ridge decides what the calibration tokens leave open. `least_squares` draws W_2' to zero; `compensate` draws it to the
columns that were there, which is optimal brain surgeon's update for the removal of all the others at once, C + ridge
being its Hessian. Without a ridge they are the same.
"""

from __future__ import annotations

from dataclasses import replace
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


def _cross(second: Tensor, centre: Tensor, kept: Tensor, w2: Tensor) -> Tensor:
    """C_r: W_2^T of the centred moments: [r, d]."""
    return second[kept] @ w2.mT - torch.outer(centre[kept], w2 @ centre)
