"""Weighted PCA for attention contraction (SKD super-network): the same function, its knowledge in the first dimensions.

Queries with keys, and values with outputs, are rotated into the order of what they carry over the task's own tokens,
each token weighted by what the loss would lose with it (Eq. 10); FFN neurons are sorted by the same first-order
measure (Eq. 9, 12). Nothing is dropped, so the network computes what it did.

The paper takes the principal components of queries and keys, and of values. Here the products W_Q^T W_K and W_V^T W_O^T
are decomposed over those tokens, as everywhere in `derive`: what a dimension carries is then measured where it arrives.
Values that have a bias get one that makes each dimension's mean over the tokens zero, and the output bias its opposite:
what is dropped later is replaced by its mean. Without one the mean is lost with the dimension, and counts in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.embedding import measure_tokens, token_weights
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.skd.piad import measure_importance
from edgevit.derivation.solve.attention import attention_spectra, narrow
from edgevit.derivation.solve.embedding import encoder, nested_basis
from edgevit.network.anatomy import Attention, Block, Ffn, attentions, ffns
from edgevit.network.families import family_of
from edgevit.train.passes import Passes


def concentrate(network: nn.Module, images: Split, columns: Sequence[int], passes: Passes) -> nn.Module:
    """Return a copy that computes the same, the most important dimensions of every module first.

    Args:
        columns: for each target class, its column in the logits.
    """
    statistics = calibrate(network, images, passes, factorisation="tokens", columns=columns)
    moments = [s.moment for s in statistics if s.moment is not None]
    importance = measure_importance(network, images, columns, passes)
    family = family_of(network)
    blocks = family.read(network)
    neurons = [importance.taylor[i, "ffn"] for i in range(len(blocks))]
    with torch.no_grad():
        parts = zip(rotate(attentions(blocks), moments), sort_neurons(ffns(blocks), neurons), strict=True)
        return family.build(network, [Block(*pair) for pair in parts])


def concentrate_embedding(
    network: nn.Module, images: Split, columns: Sequence[int], passes: Passes, seed: int
) -> tuple[nn.Module, Tensor]:
    """Return a copy that computes the same with its tokens' largest directions in their first channels.

    Beside it E [d, d], by which tokens were multiplied. What stands between tokens and weights is folded into these.
    """
    weights = token_weights(network, images, columns, passes, seed=seed)
    directions = measure_tokens(network, images, weights, passes).directions
    encode = encoder(directions, len(directions), nested_basis)
    with torch.no_grad():
        return family_of(network).with_embedding(network, encode.to(passes.compute.device)), encode


@torch.no_grad()
def rotate(parts: Sequence[Attention], moments: Sequence[Tensor]) -> list[Attention]:
    """Give every head its factors at full width, in falling order of what they carry.

    Shapes: moments [d + 1, d + 1] of the tokens [x 1].
    """
    # No output bias makes up for a mean without value biases: then it must count in what a dimension carries.
    measured = [replace(a, bo=None) if a.bv is None else a for a in parts]
    spectra = attention_spectra(measured, moments)
    rotated = narrow(parts, [(a.qk, a.vo) for a in parts], spectra=spectra)
    return [
        _centred(part, moment[:-1, -1].to(part.wv)) if before.bv is not None else part
        for before, part, moment in zip(parts, rotated, moments, strict=True)
    ]


def _centred(part: Attention, mean: Tensor) -> Attention:
    """Move the values of the mean token [d] into the output bias, exactly: attention rows sum to one."""
    values = part.wv @ mean
    outputs = torch.einsum("hdv,hv->d", part.wo, values)
    return replace(part, bv=-values, bo=outputs if part.bo is None else part.bo + outputs)


@torch.no_grad()
def sort_neurons(parts: Sequence[Ffn], importance: Sequence[Tensor]) -> list[Ffn]:
    """Put every FFN's neurons into falling order of importance [e]."""
    orders = [torch.argsort(score, descending=True, stable=True) for score in importance]
    return [part.keep(order.to(part.w1.device)) for part, order in zip(parts, orders, strict=True)]
