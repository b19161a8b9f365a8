"""The only code that changes a model's structure: merge or drop FFN neurons, factorise attention, drop classes.

Exact wherever the plan's constraints hold: neurons of a cluster are equal, and [W_Q b_Q] and W_V of each head have no
more rank than is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.derive.algebra.factorise import Spectrum, decompose, factors, singular_values
from edgevit.derive.methods.vulcan.collapse import merge, to_device
from edgevit.derive.methods.vulcan.rank import query_matrix
from edgevit.derive.plan import Plan
from edgevit.errors import PlanError
from edgevit.models.anatomy import BlockDims, BlockWeights
from edgevit.models.families import family_of
from edgevit.models.slim import bare_copy

FLOOR = 1e-4  # of `metrics`

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


def _has_output_bias(block: BlockWeights) -> bool:
    return block.bo is not None or block.bv is not None


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


@dataclass(frozen=True)
class Metrics:
    """What the error of one block's factors is measured in, from the moment of its input tokens."""

    query: Tensor  # [s, s] second moment of [x 1], or of x where queries have no bias
    key: Tensor  # [d, d] covariance of x: softmax ignores what all keys of a query have in common
    mean: Tensor  # [d] of x


def metrics(moment: Tensor, query_side: int, floor: float) -> Metrics:
    """Split the moment [d + 1, d + 1] of [x 1] into the metrics of a block.

    Every direction keeps at least the share `floor` of the mean variance: where the calibration images say nothing,
    because there are fewer tokens than directions, the weights decide, and nothing is ever divided by zero.
    """
    moment = moment.double()
    embed = len(moment) - 1
    mean = moment[:-1, -1]
    least = floor * moment.diagonal()[:-1].mean().clamp_min(torch.finfo(moment.dtype).tiny)
    eye = torch.eye(embed + 1, dtype=moment.dtype, device=moment.device)
    query = (moment + least * eye)[:query_side, :query_side]
    return Metrics(query, moment[:-1, :-1] - torch.outer(mean, mean) + least * eye[:-1, :-1], mean)


@dataclass(frozen=True)
class Spectra:
    """The decomposed products of every block: any widths can be cut from them."""

    qk: tuple[Spectrum, ...]
    vo: tuple[Spectrum, ...]


def _decompose(
    pairs: Sequence[Pair], left: Sequence[Tensor] | None, right: Sequence[Tensor] | None
) -> tuple[Spectrum, ...]:
    """Decompose each block's product in the metrics of its two sides; None measures the weights."""
    found: dict[int, Spectrum] = {}
    for members in _alike(pairs):
        sides = [[pairs[i][side] for i in members] for side in (0, 1)]
        of_members = [None if m is None else [m[i] for i in members] for m in (left, right)]
        found.update(zip(members, decompose(*sides, *of_members), strict=True))
    return tuple(found[i] for i in range(len(pairs)))


def attention_spectra(
    blocks: Sequence[BlockWeights],
    moments: Sequence[Tensor] | None = None,
    floor: float = FLOOR,
    query_moments: Sequence[Tensor] | None = None,
) -> Spectra:
    """Decompose W_Q^T W_K and W_V^T W_O^T of every head (Vulcan, Eq. 10 and 11).

    With `moments` ([d + 1, d + 1] per block) the error of logits and values over those inputs is minimised instead of
    the error of the weights. `query_moments`, alike, where queries matter at other tokens than keys and values do.
    """
    qk, vo = [qk_pair(b) for b in blocks], [vo_pair(b) for b in blocks]
    if moments is None:
        return Spectra(_decompose(qk, None, None), _decompose(vo, None, None))
    device = blocks[0].wq.device
    measured = [metrics(m.to(device), a.shape[-1], floor) for m, (a, _) in zip(moments, qk, strict=True)]
    asking = [m.to(device) for m in query_moments or moments]
    queries = [metrics(m, a.shape[-1], floor).query for m, (a, _) in zip(asking, qk, strict=True)]
    # Attention averages values over tokens, so W_O sees no metric; and what all tokens share passes into the bias, if
    # there is one.
    values = [
        m.key if _has_output_bias(b) else m.key + torch.outer(m.mean, m.mean)
        for b, m in zip(blocks, measured, strict=True)
    ]
    return Spectra(_decompose(qk, queries, [m.key for m in measured]), _decompose(vo, values, None))


def narrow_attention(
    blocks: Sequence[BlockWeights],
    dims: Sequence[BlockDims],
    moments: Sequence[Tensor] | None = None,
    spectra: Spectra | None = None,
) -> list[BlockWeights]:
    """Factorise every head of every block to the widths of `dims`, from `spectra` if they are there already.

    Scale: the slim block divides its logits by sqrt(q'), so W_Q' carries sqrt(q' / q). With `moments`, the mean of what
    the values lose goes into the output bias, if the base has one: attention rows sum to one, so it passes through
    exactly.
    """
    spectra = spectra or attention_spectra(blocks, moments)
    narrowed = []
    for i, (block, new) in enumerate(zip(blocks, dims, strict=True)):
        wq, wk = factors(spectra.qk[i], *qk_pair(block), new.qk)
        wv, wo = factors(spectra.vo[i], *vo_pair(block), new.vo)
        wq = wq * (new.qk / block.wq.shape[1]) ** 0.5
        embed = block.wk.shape[-1]
        bq = None if block.bq is None else wq[..., embed]
        slim = replace(block, wq=wq[..., :embed], bq=bq, wk=wk, bk=None, wv=wv, bv=None, wo=wo.mT)
        bias = output_bias(block)
        if moments is not None and bias is not None:
            bias = bias + _mean_output(block, moments[i]) - _mean_output(slim, moments[i])
        narrowed.append(replace(slim, bo=bias))
    return narrowed


def _mean_output(block: BlockWeights, moment: Tensor) -> Tensor:
    """sum_h W_O W_V m of the mean token m: [d]."""
    mean = moment[:-1, -1].to(block.wv)
    return torch.einsum("hdv,hve,e->d", block.wo.detach(), block.wv.detach(), mean)


@torch.no_grad()
def keep_heads(block: BlockWeights, heads: Sequence[int], moment: Tensor) -> BlockWeights:
    """Keep these heads of a block; the mean output of the others, over the tokens of the moment, goes into its bias."""
    kept = list(heads)
    if len(kept) == len(block.wq):
        return block
    of_heads = {name: getattr(block, name) for name in ("wq", "bq", "wk", "bk", "wv", "bv", "wo")}
    chosen: dict[str, Any] = {name: None if t is None else t[kept] for name, t in of_heads.items()}
    fewer = replace(block, **chosen)
    if not _has_output_bias(block):
        return fewer
    lost = _mean_output(block, moment) - _mean_output(fewer, moment)
    before, after = output_bias(block), output_bias(fewer)
    if before is not None and after is not None:
        lost = lost + before - after  # what the dropped value biases passed through
    return replace(fewer, bo=lost if block.bo is None else block.bo + lost)


def keep_neurons(block: BlockWeights, kept: Sequence[int] | Tensor) -> BlockWeights:
    """Keep these FFN neurons of a block, in this order; the others add no more to its output.

    Args:
        kept: their indices, as numbers or int64 [r].

    Raises:
        PlanError: it is a mask, empty, or has a neuron twice or one that the block has not.
    """
    index, count = torch.as_tensor(kept, device=block.w1.device), block.dims.ffn
    if index.ndim != 1 or not len(index) or index.dtype != torch.int64:
        raise PlanError(
            f"neurons to keep are {list(index.shape)} {index.dtype}, expected at least one index, torch.int64; "
            f"mask.nonzero().flatten() makes indices of a mask"
        )
    numbers = sorted(index.tolist())
    if numbers[0] < 0 or numbers[-1] >= count:
        raise PlanError(f"neurons to keep run from {numbers[0]} to {numbers[-1]}, expected 0 to {count - 1}")
    if twice := [a for a, b in pairwise(numbers) if a == b]:
        raise PlanError(f"neurons to keep have {twice[0]} more than once, expected every neuron at most once")
    b1 = None if block.b1 is None else block.b1[index]
    return replace(block, w1=block.w1[index], b1=b1, w2=block.w2[:, index])


@torch.no_grad()
def apply(network: nn.Module, plan: Plan) -> nn.Module:
    """Return a slim copy of the network; the network itself is not changed.

    Raises:
        PlanError: the plan does not fit the network.
    """
    family = family_of(network)
    blocks = family.read(network)
    plan.check(blocks)
    narrowed = narrow_attention(blocks, plan.dims, plan.moments)
    device = blocks[0].w1.device
    merged = [merge(block, to_device(c, device)) for block, c in zip(narrowed, plan.clusters, strict=True)]
    slim: nn.Module = family.build(network, merged)
    return slim


@torch.no_grad()
def rebuild(network: nn.Module, blocks: Sequence[BlockWeights]) -> nn.Module:
    """Return a slim copy whose blocks have these weights; the network itself is not changed."""
    slim: nn.Module = family_of(network).build(network, blocks)
    return slim


@torch.no_grad()
def without_neurons(network: nn.Module, masks: Sequence[Tensor]) -> nn.Module:
    """Return a copy in which the FFN neurons [e] whose mask is zero no longer reach the output; no shape changes."""
    copied = bare_copy(network)
    for block, mask in zip(family_of(copied).read(copied), masks, strict=True):
        block.w2.mul_(mask.to(block.w2))
    return copied


@torch.no_grad()
def with_class_bias(network: nn.Module, classes: Sequence[int], bias: float) -> nn.Module:
    """Return a copy that adds this bias to the logits of all other classes (NuWa's head focus)."""
    copied = bare_copy(network)
    for head in family_of(copied).classifiers(copied):
        others = torch.ones(head.out_features, dtype=torch.bool)
        others[list(classes)] = False
        head.bias[others] += bias
    return copied


def with_classes(network: nn.Module, classes: Sequence[int]) -> nn.Module:
    """Return a copy whose classifier has only these rows, in this order."""
    copied = bare_copy(network)
    family_of(network).keep_classes(copied, classes)
    return copied
