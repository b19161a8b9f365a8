"""Weighted PCA for attention contraction (SKD super-network): put the most important dimensions first.

Queries with keys, and values with outputs, are rotated into directions in falling order of their energy over the task's
own tokens, each token weighted by its first-order importance for the loss (Eq. 10). FFN neurons are sorted by the same
measure (Eq. 9, 12). Nothing is dropped, so the network computes the same function.

The paper takes the principal components of queries and keys, and of values. Here the products W_Q^T W_K and W_V^T W_O^T
are decomposed over those tokens, as in all of edgevit's methods: a dimension's energy is then measured at the output of
the product. If values have a bias, it is set so that each dimension's mean over the tokens is zero, and the output bias
compensates: a dropped dimension is then replaced by its mean. Without a bias the mean is lost with the dimension, and
counts in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.embedding import measure_tokens, token_weights
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.skd.piad import measure_importance
from edgevit.derivation.solve.attention import attention_spectra, narrow
from edgevit.derivation.solve.embedding import encoder, nested_basis
from edgevit.network.anatomy import Attention, Block, Ffn, attentions, ffns
from edgevit.network.network import Network
from edgevit.train.passes import Passes


def concentrate(network: Network, images: Split, passes: Passes) -> Network:
    """Return a copy that computes the same, the most important dimensions of every module first."""
    statistics = calibrate(network, images, passes, factorisation="tokens")
    moments = [s.moment for s in statistics if s.moment is not None]
    importance = measure_importance(network, images, passes)
    blocks = network.read()
    neurons = [importance.taylor[i, "ffn"] for i in range(len(blocks))]
    with torch.no_grad():
        parts = zip(rotate(attentions(blocks), moments), sort_neurons(ffns(blocks), neurons), strict=True)
        return network.build([Block(*pair) for pair in parts])


def concentrate_embedding(network: Network, images: Split, passes: Passes, seed: int) -> tuple[Network, Tensor]:
    """Return a copy that computes the same with its tokens' largest directions in their first channels, and E.

    E [d, d] is the matrix that tokens were multiplied by. Norms and scales between tokens and weights are folded into
    the weights.
    """
    weights = token_weights(network, images, passes, seed=seed)
    directions = measure_tokens(network, images, weights, passes).directions
    encode = encoder(directions, len(directions), nested_basis)
    with torch.no_grad():
        return network.with_embedding(encode.to(passes.compute.device)), encode


@torch.no_grad()
def rotate(parts: Sequence[Attention], moments: Sequence[Tensor]) -> list[Attention]:
    """Give every head its factors at full width, in falling order of their energy.

    Shapes: moments [d + 1, d + 1] of the tokens [x 1].
    """
    # Without value biases no output bias replaces the mean of a dimension, so it must count in the energy.
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
