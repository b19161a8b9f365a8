"""Weighted PCA for attention contraction (SKD super-network): put the most important dimensions first.

Queries with keys, and values with outputs, are rotated into directions in falling order of their energy over the task's
own tokens, each token weighted by its first-order importance for the loss (Eq. 10). FFN neurons are sorted by the same
measure (Eq. 9, 12). Nothing is dropped, so the network computes the same function.

The paper takes the principal components of queries and keys, and of values (Eq. 1 to 8): `as_published`. By default the
products W_Q^T W_K and W_V^T W_O^T are decomposed over those tokens, as in all of edgevit's methods. The energy of a
dimension is then measured at the output of the product. If values have a bias, it is set so that each dimension's mean
over the tokens is zero, and the output bias compensates: a dropped dimension is then replaced by its mean. Without a
bias the mean is lost with the dimension, and counts in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.embedding import measure_tokens, token_weights
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.skd.piad import measure_importance
from edgevit.derivation.solve.attention import attention_spectra, narrow
from edgevit.derivation.solve.embedding import encoder, nested_basis
from edgevit.network.anatomy import Attention, Block, Ffn, attentions, ffns, unpack
from edgevit.network.network import Network
from edgevit.train.passes import Passes

Weighting = Literal["tokens", "elements", "dimensions", "alike"]


def concentrate(network: Network, images: Split, passes: Passes, *, as_published: bool = False) -> Network:
    """Return a copy that computes the same, the most important dimensions of every module first."""
    importance = measure_importance(network, images, passes)
    blocks = network.read()
    neurons = [importance.taylor[i, "ffn"] for i in range(len(blocks))]
    if as_published:
        rotated = rotate_published(attentions(blocks), feature_covariances(network, images, passes))
    else:
        statistics = calibrate(network, images, passes, factorisation="tokens")
        rotated = rotate(attentions(blocks), [s.moment for s in statistics if s.moment is not None])
    with torch.no_grad():
        parts = zip(rotated, _sort_neurons(ffns(blocks), neurons), strict=True)
        return network.build([Block(*pair) for pair in parts])


def concentrate_embedding(network: Network, images: Split, passes: Passes, seed: int) -> tuple[Network, Tensor]:
    """Return a copy that computes the same with its tokens' largest directions in their first channels, and E.

    E [d, d] is the matrix that tokens were multiplied by. Norms and scales between tokens and weights are folded into
    the weights.
    """
    weights = token_weights(network, images, passes, seed=seed)
    (directions,) = measure_tokens(network, images, weights, passes).directions
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
    rotated = narrow(parts, [a.widths for a in parts], spectra=spectra)
    return [
        _centred(part, moment[:-1, -1].to(part.wv)) if before.bv is not None else part
        for before, part, moment in zip(parts, rotated, moments, strict=True)
    ]


def feature_covariances(
    network: Network, images: Split, passes: Passes, weighting: Weighting = "tokens"
) -> list[tuple[Tensor, Tensor]]:
    """Covariances of queries and keys, summed, and of values, of each block: [H, q, q] and [H, v, v] in fp64.

    Features are centred by their mean over all tokens. Then each token of a head is weighted by its importance, which
    is |feature * gradient of the loss|, summed over the head's dimensions (Eq. 9, 10).

    Args:
        weighting: by what else the paper's Figure 4 weights: each element by its own importance, each dimension by its
            sum over the tokens, or all alike.
    """
    device, dims = passes.compute.device, list(network.dims)
    target = torch.as_tensor(network.columns, device=device)
    outputs: dict[int, Tensor] = {}
    sums: list[list[_FeatureSums]] = [
        [_FeatureSums(d.heads, width, weighting, device) for width in (d.qk, d.qk, d.vo)] for d in dims
    ]

    def see(i: int, _: Any, output: Tensor) -> None:
        outputs[i] = output

    def add(logits: Tensor, labels: Tensor) -> None:
        # Summed, not averaged: the gradient at a token is that of its own image's loss.
        loss = F.cross_entropy(logits.float(), target[labels], reduction="sum")
        gradients = torch.autograd.grad(loss, list(outputs.values()))
        for (i, packed), gradient in zip(outputs.items(), gradients, strict=True):
            pairs = zip(unpack(packed.detach(), dims[i]), unpack(gradient, dims[i]), strict=True)
            for of_kind, (feature, of_feature) in zip(sums[i], pairs, strict=True):
                of_kind.add(feature, of_feature)
        outputs.clear()

    passes.run(network, images, add, [(network.projections, see)], gradients=True, stage="statistics of features")
    covariances = [[of_kind.covariance(passes.compute.sum).cpu() for of_kind in of_block] for of_block in sums]
    return [(q + k, v) for q, k, v in covariances]


class _FeatureSums:
    """Sums over the tokens of one kind of feature of a block, for a covariance around the mean of all tokens.

    With roots z of weights and features x, [n, H, w], it is the sum of (z (x - mean))^T (z (x - mean)).
    """

    def __init__(self, heads: int, width: int, weighting: Weighting, device: torch.device) -> None:
        self.weighting = weighting
        self.tokens = torch.zeros((), dtype=torch.float64, device=device)
        self.mean, self.importance = torch.zeros(2, heads, width, dtype=torch.float64, device=device)
        self.squares, self.crossed, self.roots = torch.zeros(3, heads, width, width, dtype=torch.float64, device=device)

    def add(self, feature: Tensor, gradient: Tensor) -> None:
        """Add features [B, N, H, w] and their gradients."""
        x, g = (tensor.flatten(0, 1).double() for tensor in (feature, gradient))
        importance = (x * g).abs()
        z = torch.ones_like(x)
        if self.weighting == "tokens":
            z = importance.sum(-1, keepdim=True).sqrt().expand_as(x)
        elif self.weighting == "elements":
            z = importance.sqrt()
        self.tokens += len(x)
        self.mean += x.sum(0)
        self.importance += importance.sum(0)
        for total, left, right in ((self.squares, z * x, z * x), (self.crossed, z * x, z), (self.roots, z, z)):
            total += torch.einsum("nha,nhb->hab", left, right)

    def covariance(self, add_up: Any) -> Tensor:
        """The covariance [H, w, w]; `add_up` sums over all processes."""
        names = ("tokens", "mean", "importance", "squares", "crossed", "roots")
        tokens, total, importance, squares, crossed, roots = (add_up(getattr(self, name)) for name in names)
        mean = total / tokens
        crossed = crossed * mean.unsqueeze(-2)  # z x of the row, z mean of the column
        centred = squares - crossed - crossed.mT + roots * mean.unsqueeze(-1) * mean.unsqueeze(-2)
        if self.weighting == "dimensions":
            root = importance.sqrt()
            centred = centred * root.unsqueeze(-1) * root.unsqueeze(-2)
        covariance: Tensor = (centred + centred.mT) / 2 / (tokens - 1).clamp_min(1)
        return covariance


@torch.no_grad()
def rotate_published(parts: Sequence[Attention], of_features: Sequence[tuple[Tensor, Tensor]]) -> list[Attention]:
    """Rotate every head into the principal components of its features, the largest first (Eq. 1 and 3).

    Rotated queries and keys, whose basis is fixed, stay as they are.

    Shapes: of_features as `feature_covariances` gives them.
    """
    return [_rotated(part, qk, vo) for part, (qk, vo) in zip(parts, of_features, strict=True)]


def _rotated(part: Attention, qk: Tensor, vo: Tensor) -> Attention:
    def components(covariance: Tensor) -> Tensor:
        rows: Tensor = torch.linalg.eigh(covariance).eigenvectors.flip(-1).mT  # one per component
        return rows.to(part.wv)

    def turned(bias: Tensor | None, by: Tensor) -> Tensor | None:
        return None if bias is None else torch.einsum("hab,hb->ha", by, bias)

    value = components(vo)
    part = replace(part, wv=value @ part.wv, bv=turned(part.bv, value), wo=part.wo @ value.mT)
    if part.rotary is not None:
        return part
    both = components(qk)
    return replace(part, wq=both @ part.wq, bq=turned(part.bq, both), wk=both @ part.wk, bk=turned(part.bk, both))


def _centred(part: Attention, mean: Tensor) -> Attention:
    """Move the values of the mean token [d] into the output bias, exactly: attention rows sum to one."""
    values = part.wv @ mean
    outputs = torch.einsum("hdv,hv->d", part.wo, values)
    return replace(part, bv=-values, bo=outputs if part.bo is None else part.bo + outputs)


@torch.no_grad()
def _sort_neurons(parts: Sequence[Ffn], importance: Sequence[Tensor]) -> list[Ffn]:
    """Put every FFN's neurons into falling order of importance [e]."""
    orders = [torch.argsort(score, descending=True, stable=True) for score in importance]
    return [part.keep(order.to(part.w1.device)) for part, order in zip(parts, orders, strict=True)]
