"""Fewer channels for the tokens of a whole network, in closed form: keep what the norms that read them see most of.

Tokens x [d] are only added to, and read through LayerNorms: n = (x - mean) / sqrt(var + eps). With the
d' - 1 directions Q [d, d' - 1] that hold most of the normalised tokens, all orthogonal to the ones vector, and any
orthonormal basis U [d', d' - 1] of what is orthogonal to the ones vector in d' dimensions,

    x' = E x,    E = sqrt(d' / d) U Q^T

has mean 0, and where Q holds x - mean wholly its variance is that of x; so its LayerNorm, of d' channels and with the
same eps, gives E n, and E^T d / d' takes it back. Writers W become E W, readers W become W E^T d / d'. At d' = d
nothing is lost; below, what Q leaves out. (SliceGPT, Ashkboos et al. 2024, for RMSNorm; here for LayerNorm.)
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor

from edgevit.derive.algebra.factorise import one_thread


def flat_basis(width: int) -> Tensor:
    """Orthonormal columns [d, d - 1] that are orthogonal to the ones vector: cosines, of which each spreads evenly.

    So the largest directions of the tokens are shared by all channels, and no channel is an outlier.
    """
    rows = torch.arange(width, dtype=torch.float64).unsqueeze(1)
    waves = torch.arange(1, width, dtype=torch.float64)
    return sqrt(2 / width) * torch.cos(pi * (rows + 0.5) * waves / width)


def nested_basis(width: int) -> Tensor:
    """The same of Helmert's contrasts: the first d' - 1 lie in the first d' channels, and are orthogonal to ones there.

    So tokens of a network that is given this basis (`encoder`) hold their largest directions in their first channels,
    and its first d' channels are what it would be at that width (`prefix`), but for what all of them share.
    """
    counts = torch.arange(1, width, dtype=torch.float64)
    contrasts = torch.ones(width, width - 1, dtype=torch.float64).triu()
    contrasts[torch.arange(1, width), torch.arange(width - 1)] = -counts
    return contrasts / (counts * (counts + 1)).sqrt()


def prefix(width: int, of: int) -> Tensor:
    """E [d', d] that keeps the first d' = `width` channels: what they share is no direction, and norms take it away."""
    return sqrt(width / of) * torch.eye(width, of, dtype=torch.float64)


def channel_encoder(channels: Tensor, width: int) -> Tensor:
    """The matrix [d', d] by which tokens keep these channels [d'] of `width` (`plan.EmbedPlan`), in fp64.

    A LayerNorm does not see its scale, d' / d; with it those that read tokens keep their weights as they are.
    """
    encode = torch.zeros(len(channels), width, dtype=torch.float64)
    encode[torch.arange(len(channels)), channels.cpu()] = len(channels) / width
    return encode


def principal(moment: Tensor) -> Tensor:
    """The directions Q [d, d - 1] of a second moment [d, d] of normalised tokens, the largest first; on the CPU."""
    with one_thread():
        basis = flat_basis(len(moment))
        _, vectors = torch.linalg.eigh(basis.mT @ moment.double().cpu() @ basis)  # ascending
        directions: Tensor = basis @ vectors.flip(-1)
        return directions


def encoder(directions: Tensor, width: int, basis: Callable[[int], Tensor] = flat_basis) -> Tensor:
    """E [d', d] for d' = `width`, from all directions [d, d - 1]; `basis` is U [d', d' - 1] of a width."""
    with one_thread():
        encode: Tensor = sqrt(width / len(directions)) * basis(width) @ directions[:, : width - 1].mT
        return encode
