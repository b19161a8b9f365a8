"""Weighted PCA for attention contraction (SKD super-network): the same function, its knowledge in the first dimensions.

Queries with keys, and values with outputs, are rotated into the order of what they carry over the task's own tokens,
each token weighted by what the loss would lose with it (Eq. 10); FFN neurons are sorted by the same first-order
measure (Eq. 9, 12). Nothing is dropped, so the network computes what it did.

The paper takes the principal components of queries and keys, and of values. Here the products W_Q^T W_K and W_V^T W_O^T
are decomposed over those tokens, as everywhere in `derive`: what a dimension carries is then measured where it arrives.
Values get a bias that makes each dimension's mean over the tokens zero, and the output bias its opposite: what is
dropped later is replaced by its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive import surgery
from edgevit.derive.measure.statistics import calibrate
from edgevit.derive.methods.skd.piad import measure_importance
from edgevit.models.anatomy import BlockWeights
from edgevit.models.families import family_of
from edgevit.train.passes import Passes


def concentrate(network: nn.Module, images: Split, columns: Sequence[int], passes: Passes) -> nn.Module:
    """Return a copy that computes the same, the most important dimensions of every module first.

    Args:
        columns: for each target class, its column in the logits.
    """
    statistics = calibrate(network, images, passes, factorisation="tokens", columns=columns)
    moments = [s.moment for s in statistics if s.moment is not None]
    importance = measure_importance(network, images, columns, passes)
    blocks = family_of(network).read(network)
    neurons = [importance.taylor[i, "ffn"] for i in range(len(blocks))]
    return surgery.rebuild(network, sort_neurons(rotate_attention(blocks, moments), neurons))


@torch.no_grad()
def rotate_attention(blocks: Sequence[BlockWeights], moments: Sequence[Tensor]) -> list[BlockWeights]:
    """Give every head its factors at full width, in falling order of what they carry.

    Shapes: moments [d + 1, d + 1] of the tokens [x 1].
    """
    spectra = surgery.attention_spectra(blocks, moments)
    rotated = surgery.narrow_attention(blocks, [b.dims for b in blocks], spectra=spectra)
    return [
        _centred(block, moment[:-1, -1].to(block.wv)) if before.bv is not None else block
        for before, block, moment in zip(blocks, rotated, moments, strict=True)
    ]


def _centred(block: BlockWeights, mean: Tensor) -> BlockWeights:
    """Move the values of the mean token [d] into the output bias, exactly: attention rows sum to one."""
    values = block.wv @ mean
    outputs = torch.einsum("hdv,hv->d", block.wo, values)
    return replace(block, bv=-values, bo=outputs if block.bo is None else block.bo + outputs)


@torch.no_grad()
def sort_neurons(blocks: Sequence[BlockWeights], importance: Sequence[Tensor]) -> list[BlockWeights]:
    """Put every FFN's neurons into falling order of importance [e]."""
    done = []
    for block, score in zip(blocks, importance, strict=True):
        order = torch.argsort(score, descending=True, stable=True).to(block.w1.device)
        done.append(surgery.keep_neurons(block, order))
    return done
