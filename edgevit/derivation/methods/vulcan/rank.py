"""The truncated nuclear norm, which reduces the rank of attention's projections (Vulcan, section 3.3).

It sums the singular values of M_Q = [W_Q b_Q] and M_V = W_V beyond the width that each head keeps. M_Q contains the
query bias because the factorised matrix does. M_V has no bias: the value bias folds exactly into the output bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.solve.factorise import one_thread

# Singular values below this share of a matrix's largest one count as zero: rounding in fp32 leaves values of 1.5e-8,
# and the Gram matrix resolves no smaller ones.
_ZERO = 1e-7


class _Tail(torch.autograd.Function):
    """Sum s_i and s_i^2 over each matrix's singular values beyond its kept width.

    With the eigenvectors U of W W^T, the gradients on the tail t are U_t S_t^-1 U_t^T W and 2 U_t U_t^T W. All is
    computed in fp64: in fp32 the values stop falling at 1e-4, and the product with S_t^-1 has an error of 3 % at 1e-6
    of the largest value. A singular value below `_ZERO` has gradient zero.
    """

    @staticmethod
    def forward(ctx: Any, ranks: Tensor, *matrices: Tensor) -> tuple[Tensor, Tensor]:
        with one_thread():
            gram = torch.cat([(m64 := m.double()) @ m64.mT for m in matrices])  # [B, q, q], all heads of all matrices
            squares, vectors = torch.linalg.eigh(gram)  # ascending
            values = squares.clamp_min(0).sqrt()
            width = gram.shape[-1]
            tail = torch.arange(width, device=gram.device) < (width - ranks).unsqueeze(-1)  # [B, q]
            floor = _ZERO * values[:, -1:].clamp_min(torch.finfo(values.dtype).tiny)
            inverse = torch.where(tail & (values > floor), values, torch.inf).reciprocal()
            projected = vectors * tail.unsqueeze(-2)
            slope = (vectors * inverse.unsqueeze(-2)) @ vectors.mT
            project = projected @ vectors.mT
        ctx.save_for_backward(slope, project, *matrices)
        tail_values = values * tail
        dtype = matrices[0].dtype
        return tail_values.sum().to(dtype), tail_values.square().sum().to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        nuclear, square = grads
        slope, project, *matrices = ctx.saved_tensors
        combined = (nuclear * slope + 2 * square * project).split([len(m) for m in matrices])
        return (None, *((c @ m.double()).to(m) for c, m in zip(combined, matrices, strict=True)))


def tail_sums(matrices: Sequence[Tensor], ranks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sum s_i and s_i^2 over i > rank for every head of every matrix [H, q, m], differentiably.

    Matrices of the same width q are decomposed in one batched call.
    """
    nuclear, square = matrices[0].new_zeros(()), matrices[0].new_zeros(())
    for width in sorted({m.shape[1] for m in matrices}):
        group = [(m, k) for m, k in zip(matrices, ranks, strict=True) if m.shape[1] == width]
        per_head = torch.cat([torch.full((len(m),), k, device=m.device) for m, k in group])
        first, second = _Tail.apply(per_head, *(m for m, _ in group))
        nuclear, square = nuclear + first, square + second
    return nuclear, square
