"""The only code that changes a model's structure: merge FFN neurons, factorise attention, drop classes.

Exact wherever the plan's constraints hold: neurons of a cluster are equal, and [W_Q b_Q] and W_V of each head have no
more rank than is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgevit.derive.collapse import merge, to_device
from edgevit.derive.factorise import decompose, factors, singular_values
from edgevit.derive.plan import Plan
from edgevit.derive.rank import query_matrix
from edgevit.models.blocks import BlockDims, BlockWeights
from edgevit.models.families import family_of
from edgevit.models.slim import bare_copy

Pair = tuple[Tensor, Tensor]  # A [H, w, m] and B [H, w, n] of one block, whose products A^T B matter


def qk_pair(block: BlockWeights) -> Pair:
    """The pair whose product gives the attention logits: [W_Q b_Q] [H, q, d + 1] and W_K [H, q, d].

    The key bias adds the same to every key's logit of a query, which softmax ignores: it is dropped, exactly.
    """
    return query_matrix(block).detach(), block.wk.detach()


def vo_pair(block: BlockWeights) -> Pair:
    """The pair whose product maps tokens to outputs: W_V [H, v, d] and W_O^T [H, v, d]."""
    return block.wv.detach(), block.wo.detach().mT


def output_bias(block: BlockWeights) -> Tensor | None:
    """b_O + sum_h W_O b_V: attention rows sum to one, so the value bias passes through unchanged."""
    if block.bv is None:
        return block.bo
    folded = torch.einsum("hdv,hv->d", block.wo, block.bv)
    return folded if block.bo is None else block.bo + folded


def _alike(pairs: Sequence[Pair]) -> Iterator[list[int]]:
    """Group the blocks whose pairs have one shape: each group is one batched call."""
    for shape in sorted({(*a.shape, *b.shape) for a, b in pairs}):
        yield [i for i, (a, b) in enumerate(pairs) if (*a.shape, *b.shape) == shape]


def head_singular_values(blocks: Sequence[BlockWeights]) -> list[tuple[Tensor, Tensor]]:
    """Singular values of W_Q^T W_K and of W_V^T W_O^T for each block: ([H, q], [H, v]), descending."""
    found: list[dict[int, Tensor]] = [{}, {}]
    qk = [(b.wq.detach(), b.wk.detach()) for b in blocks]  # Eq. 6 is over the weights alone
    for values, pairs in zip(found, (qk, [vo_pair(b) for b in blocks]), strict=True):
        for members in _alike(pairs):
            of_members = singular_values([pairs[i][0] for i in members], [pairs[i][1] for i in members])
            values.update(zip(members, of_members, strict=True))
    return [(found[0][i], found[1][i]) for i in range(len(blocks))]


def _narrow(pairs: Sequence[Pair], widths: Sequence[int], moments: Sequence[Pair] | None) -> list[Pair]:
    """Factorise each block's pair to its width."""
    narrow: dict[int, Pair] = {}
    for members in _alike(pairs):
        sides = [[pairs[i][side] for i in members] for side in (0, 1)]
        metrics = [None if moments is None else [moments[i][side] for i in members] for side in (0, 1)]
        for i, spectrum in zip(members, decompose(*sides, *metrics), strict=True):
            narrow[i] = factors(spectrum, *pairs[i], widths[i])
    return [narrow[i] for i in range(len(pairs))]


def narrow_attention(
    blocks: Sequence[BlockWeights], dims: Sequence[BlockDims], moments: Sequence[Tensor] | None = None
) -> list[BlockWeights]:
    """Factorise every head of every block to the widths of `dims` (Vulcan, Eq. 10 and 11).

    With `moments` ([d + 1, d + 1] per block) the error of logits and values over those inputs is minimised instead of
    the error of the weights. Scale: the slim block divides its logits by sqrt(q'), so W_Q' carries sqrt(q' / q).
    """
    qk, vo = [qk_pair(b) for b in blocks], [vo_pair(b) for b in blocks]
    qk_moments = vo_moments = None
    if moments is not None:
        moments = [m.to(blocks[0].wq.device) for m in moments]
        sides = [pair[0].shape[-1] for pair in qk]
        qk_moments = [(m[:s, :s], m[:-1, :-1]) for m, s in zip(moments, sides, strict=True)]
        # Values are averaged over tokens before W_O: only the input side has a metric.
        vo_moments = [(m[:-1, :-1], torch.eye(len(m) - 1, dtype=m.dtype, device=m.device)) for m in moments]
    narrow_qk = _narrow(qk, [d.qk for d in dims], qk_moments)
    narrow_vo = _narrow(vo, [d.vo for d in dims], vo_moments)
    narrowed = []
    for block, new, (wq, wk), (wv, wo) in zip(blocks, dims, narrow_qk, narrow_vo, strict=True):
        wq = wq * (new.qk / block.wq.shape[1]) ** 0.5
        embed = block.wk.shape[-1]
        bq = None if block.bq is None else wq[..., embed]
        narrowed.append(
            replace(block, wq=wq[..., :embed], bq=bq, wk=wk, bk=None, wv=wv, bv=None, wo=wo.mT, bo=output_bias(block))
        )
    return narrowed


@torch.no_grad()
def apply(network: nn.Module, plan: Plan) -> nn.Module:
    """Return a slim copy of the network; the network itself is not changed."""
    family = family_of(network)
    blocks = family.read(network)
    plan.check(blocks)
    narrowed = narrow_attention(blocks, plan.dims, plan.moments)
    device = blocks[0].w1.device
    merged = [merge(block, to_device(c, device)) for block, c in zip(narrowed, plan.clusters, strict=True)]
    slim: nn.Module = family.build(network, merged)
    return slim


def with_classes(network: nn.Module, classes: Sequence[int]) -> nn.Module:
    """Return a copy whose classifier has only these rows, in this order."""
    copied = bare_copy(network)
    family_of(network).keep_classes(copied, classes)
    return copied
