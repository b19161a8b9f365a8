"""Singular values and low-rank factors of many products A^T B at once, without forming any of them.

A^T B is m x n but of rank at most q, the number of rows of A [q, m] and of B [q, n]. With the Gram matrices
G_A = A A^T and G_B = B B^T (q x q, fp64) and any R with R^T R = G_A, the matrix R G_B R^T has the squares of the
singular values of A^T B as eigenvalues. Its eigenvectors U give the balanced factors

    A' = S^(-3/2) U^T R G_B A        B' = S^(-1/2) U^T R B        A'^T B' = best rank-k approximation of A^T B

with no inverse in them, so that rank-deficient A and B need no special case. Replacing A A^T by A C_A A^T (and likewise
for B) gives the approximation that is best for inputs of second moment C instead of the best for the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

# Below this share of the largest singular value fp64 Gram matrices resolve nothing: such directions are dropped.
_RESOLVED = 1e-8


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small LAPACK calls on one thread: on a busy machine two threads took 100 times longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _grams(matrices: Sequence[Tensor], moments: Sequence[Tensor] | None) -> Tensor:
    """A C A^T of every matrix [..., q, m], stacked: [len(matrices), ..., q, q] in fp64.

    One matrix after the other: fp64 copies of all of them would cost more time in page faults than the products.
    """
    if moments is None:
        return torch.stack([(a := matrix.double()) @ a.mT for matrix in matrices])
    return torch.stack(
        [(a := matrix.double()) @ c.double() @ a.mT for matrix, c in zip(matrices, moments, strict=True)]
    )


def _root(gram: Tensor) -> Tensor:
    """Some R with R^T R = gram: Cholesky where it exists, else the square root through eigenvectors."""
    lower, failed = torch.linalg.cholesky_ex(gram)
    root: Tensor = lower.mT
    if failed.any():
        values, vectors = torch.linalg.eigh(gram[failed > 0])
        root = root.clone()
        root[failed > 0] = values.clamp_min(0).sqrt().unsqueeze(-1) * vectors.mT
    return root


@dataclass(frozen=True)
class Spectrum:
    """Decomposition of the products A^T B of one block's heads; `factors` truncates it to any rank."""

    values: Tensor  # [H, q] singular values, descending, fp64
    map_a: Tensor  # [H, q, q] with A' = map_a[:k] A
    map_b: Tensor  # [H, q, q] with B' = map_b[:k] B


def decompose(
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    moments_a: Sequence[Tensor] | None = None,
    moments_b: Sequence[Tensor] | None = None,
) -> list[Spectrum]:
    """Decompose A^T B for every pair, all in one batched call.

    Shapes: every a [H, q, m] and b [H, q, n] alike; moments [m, m] and [n, n].
    """
    with one_thread():
        gram_b = _grams(b, moments_b)
        root = _root(_grams(a, moments_a))
        squares, vectors = torch.linalg.eigh(root @ gram_b @ root.mT)  # ascending
        values = squares.clamp_min(0).sqrt().flip(-1)
        rows = vectors.flip(-1).mT @ root  # U^T R
        inverse = torch.where(values > _RESOLVED * values[..., :1], values, torch.inf).reciprocal().unsqueeze(-1)
        parts = zip(values, inverse**1.5 * (rows @ gram_b), inverse**0.5 * rows, strict=True)
        return [Spectrum(*part) for part in parts]


def factors(spectrum: Spectrum, a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (A' [H, rank, m], B' [H, rank, n]) with A'^T B' closest to A^T B, singular values split evenly."""
    with one_thread():
        return spectrum.map_a[..., :rank, :].to(a) @ a, spectrum.map_b[..., :rank, :].to(b) @ b


def singular_values(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Singular values of A^T B for every pair, descending: [len(a), H, q] in fp64."""
    with one_thread():
        root = _root(_grams(a, None))
        squares: Tensor = torch.linalg.eigvalsh(root @ _grams(b, None) @ root.mT)
        return squares.clamp_min(0).sqrt().flip(-1)


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values (Vulcan, Eq. 6): [..., q] to [...]; zero if all are zero."""
    total = values.sum(-1, keepdim=True)
    p = torch.where(total > 0, values / total, 0.0)
    rank = torch.exp(-torch.special.xlogy(p, p).sum(-1))
    return torch.where(total.squeeze(-1) > 0, rank, 0.0)
