"""Widths of blocks: Vulcan's adaptive FFN widths (Eq. 3, 29) and QK/VO rates (Eq. 5, 6, 30), NuWa's, and by error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log

import torch
from torch import Tensor

from edgevit.derivation.allocate.policy import Policy, Widths
from edgevit.derivation.solve.attention import head_singular_values
from edgevit.derivation.solve.factorise import effective_rank
from edgevit.network.anatomy import Attention, Block, Ffn
from edgevit.records.model import HEAD_WIDTHS


def z_scores(activation: Tensor) -> Tensor:
    """Normalise the activations [e] of one block, to compare them with other blocks' (Vulcan, section H)."""
    centred = activation - activation.mean()
    scores: Tensor = centred / torch.linalg.vector_norm(centred).clamp_min(torch.finfo(activation.dtype).tiny)
    return scores


def _stage_scores(activation: Tensor, params: int) -> Tensor:
    """Normalise the activations [e] of one block, to compare them with those of FFNs of other sizes (Vulcan, Eq. 29).

    Args:
        params: number of the FFN's parameters.
    """
    least, most = activation.aminmax()
    shares: Tensor = (activation - least) / (most - least).clamp_min(torch.finfo(activation.dtype).tiny)
    return shares / log(params)


def _params(part: Attention | Ffn) -> int:
    """The number of an attention's or an FFN's parameters, with biases: P_M and P_F (Vulcan, Eq. 29, 30)."""
    return sum(t.numel() for name, t in vars(part).items() if isinstance(t, Tensor) and name != "rotary")


def adaptive_widths(scores: Sequence[Tensor], minimum: int = 1) -> Callable[[float], list[int]]:
    """Compute K(l) of Eq. 3 by rate: how many neurons of each block are above one global order statistic of the scores.

    Exactly ceil(rate * sum e) neurons are removed, even with ties, as far as `minimum` per block allows.
    """
    sizes = [len(s) for s in scores]
    spare = [max(len(s) - minimum, 0) for s in scores]
    # The `minimum` largest of each block are never removed.
    losable = [torch.sort(s, stable=True).values[:n] for s, n in zip(scores, spare, strict=True)]
    owner = torch.repeat_interleave(torch.arange(len(scores)), torch.tensor(spare))
    owner = owner[torch.argsort(torch.cat(losable), stable=True)]  # owner of every neuron, in the order of removal
    total = sum(sizes)

    def widths_at(rate: float) -> list[int]:
        # The small term corrects rounding such as ceil(0.6 * 5) = 4.
        removed = min(ceil(rate * total - 1e-9 * total), sum(spare))
        lost = torch.bincount(owner[:removed], minlength=len(scores))
        return [size - n for size, n in zip(sizes, lost.tolist(), strict=True)]

    return widths_at


def capped_rates(weights: Sequence[float], sizes: Sequence[float], caps: Sequence[float], mean: float) -> list[float]:
    """Compute rates proportional to `weights` whose size-weighted mean is `mean`, none above its cap.

    Section H: a rate that would exceed its cap is fixed there, and the others are solved again, until all fit.
    """
    fixed = [False] * len(weights)
    rates = list(caps)
    while not all(fixed):
        open_ = [i for i, f in enumerate(fixed) if not f]
        due = mean * sum(sizes) - sum(rates[i] * sizes[i] for i, f in enumerate(fixed) if f)
        scale = max(due, 0.0) / sum(weights[i] * sizes[i] for i in open_)
        over = [i for i in open_ if scale * weights[i] > caps[i]]
        if not over:
            for i in open_:
                rates[i] = scale * weights[i]
            break
        for i in over:
            fixed[i] = True
    return rates


def head_rates(
    values: Sequence[tuple[Tensor, Tensor]],
    attention_params: Sequence[int],
    widths: Sequence[tuple[int, int]],
    minimum: int,
) -> Callable[[float], list[tuple[float, float]]]:
    """Compute pruning rates of QK and VO width per block from their mean (Eq. 5, 6; Eq. 30 if blocks differ in size).

    Args:
        values: singular values of W_Q^T W_K and W_V^T W_O^T, ([H, q], [H, v]) per block.
        widths: (q, v) per block; no rate cuts below the width `minimum`.
    """
    ranks = [tuple(float(effective_rank(s).sum()) for s in pair) for pair in values]
    weights, sizes, caps = [], [], []
    for pair, params, block_widths in zip(ranks, attention_params, widths, strict=True):
        whole = max(sum(pair), 1e-12)
        for opposite, width in zip(pair[::-1], block_widths, strict=True):  # a high rank of the other: prune this more
            weights.append(max(2 * opposite / whole * float(params) / whole, 1e-12))
            sizes.append(float(params))
            caps.append(max(1 - minimum / width, 0.0))

    def rates_at(mean: float) -> list[tuple[float, float]]:
        rates = capped_rates(weights, sizes, caps, mean)
        return list(zip(rates[::2], rates[1::2], strict=True))

    return rates_at


def adaptive(blocks: Sequence[Block], activations: Sequence[Tensor], policy: Policy) -> Callable[[float], list[Widths]]:
    """Vulcan's allocation: request widths of each block if a share of everything prunable is removed.

    FFN widths follow the neurons' activations [e] per block (Eq. 3; of several stages Eq. 29), QK and VO the effective
    ranks (Eq. 5, 6, 30).
    """
    dims = [b.dims for b in blocks]
    neurons = {i: b.ffn for i, b in enumerate(blocks) if b.ffn is not None}
    if len({block.stage for block in blocks}) > 1:
        scores = [_stage_scores(activations[i], _params(part)) for i, part in neurons.items()]
    else:
        scores = [z_scores(activations[i]) for i in neurons]
    parts = {i: b.attention for i, b in enumerate(blocks) if b.attention is not None}
    values = head_singular_values(list(parts.values()))
    head_widths = [dims[i].head_widths for i in parts]
    neurons_at = adaptive_widths(scores, policy.minimum("ffn")) if scores else lambda _: []
    rates_at = head_rates(values, [_params(a) for a in parts.values()], head_widths, policy.head_minimum)

    def wishes_at(rate: float) -> list[Widths]:
        rates = dict(zip(parts, rates_at(rate), strict=True))
        ffn = dict(zip(neurons, neurons_at(rate), strict=True))
        widths = list[Widths]()
        for i, d in enumerate(dims):
            of_heads = zip(HEAD_WIDTHS, rates.get(i, (0.0, 0.0)), strict=True)
            widths.append({**{axis: d[axis] * (1 - rate) for axis, rate in of_heads}, "ffn": float(ffn.get(i, 0))})
        return widths

    return wishes_at


def energy_width(values: Tensor, share: float) -> int:
    """Find the least width that has a share of the squared singular values [H, q], averaged over heads (NuWa)."""
    energy = values.square()
    held = (energy.cumsum(-1) / energy.sum(-1, keepdim=True).clamp_min(torch.finfo(energy.dtype).tiny)).mean(0)
    return int((held < share - 1e-12).sum()) + 1 if held[-1] > 0 else 1


@dataclass(frozen=True)
class Curve:
    """The cost and the benefit of one width of one block."""

    error: Tensor  # [w] share of the module's output that is lost with each unit, the most important first
    unit_cost: int  # MACs or parameters of one unit


def widths_by_error(curves: Sequence[Curve]) -> Callable[[float], list[int]]:
    """Compute a width for each curve by the removed share of their cost: units of the least loss per cost go first."""
    # A unit counts at least as much as later ones, which are removed first.
    worth = [torch.cummax(c.error.flip(0), 0).values.flip(0) / c.unit_cost for c in curves]
    owner = torch.repeat_interleave(torch.arange(len(curves)), torch.tensor([len(w) for w in worth]))
    owner = owner[torch.argsort(torch.cat(worth), stable=True)]  # owner of every unit, in the order of removal
    spent = torch.tensor([float(c.unit_cost) for c in curves], dtype=torch.float64)[owner].cumsum(0)

    def widths_at(rate: float) -> list[int]:
        lost = torch.bincount(owner[: int((spent <= rate * spent[-1]).sum())], minlength=len(curves))
        return [len(w) - n for w, n in zip(worth, lost.tolist(), strict=True)]

    return widths_at
