"""What attention keeps makes up, in closed form, for the dimensions that it leaves out (CORP, Zhang and Yang, 2026).

What goes is taken as an affine function of what stays, by ridge regression over calibration tokens, and folded into the
weights that stay. With S the dimensions that stay, P those that go, and x the attention's normalised input:

    values   v_P = B v_S + c,  B = C_PS (C_SS + lift)^-1 of their covariance C;  W_O' = W_O,S + W_O,P B,  c into b_O
    logits   q_P . k_P = [q_S 1] M k_S,  where M solves  A M K_SS + lift M = A_P K_PS  with A the second moment of
             [q_S 1], A_P that of [q_S 1] with q_P, and K the covariance of keys;  W_Q' = (1 + M)^T W_Q,S

Keys are taken about their mean, as softmax ignores what all keys of a query have in common. Query and key of a pair of
tokens are taken as independent, so that both moments follow from that of the inputs alone. A lift is `ridge` times the
mean square of what it stands beside. FFNs: `least_squares.refit` with how="compensate" is the same for neurons.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgevit.derivation.algebra.factorise import one_thread
from edgevit.network.anatomy import Attention

_TINY = torch.finfo(torch.float64).tiny


def rest(kept: Tensor, width: int) -> Tensor:
    """The indices below `width` that are not kept, ascending. Shape: kept [r] int64."""
    stays = torch.zeros(width, dtype=torch.bool)
    stays[kept.cpu()] = True
    return (~stays).nonzero().flatten()


def query_second_moment(part: Attention, moment: Tensor) -> Tensor:
    """E[[q 1][q 1]^T] per head over the tokens of the moment of [x 1], [d + 1, d + 1]: [H, q + 1, q + 1] in fp64."""
    wq = part.wq.detach().double()
    bias = wq.new_zeros(part.heads, part.qk) if part.bq is None else part.bq.detach().double()
    affine = torch.cat([wq, bias.unsqueeze(-1)], dim=-1)
    one = torch.zeros(part.heads, 1, affine.shape[-1], dtype=affine.dtype, device=affine.device)
    one[..., -1] = 1
    affine = torch.cat([affine, one], dim=1)
    return affine @ moment.to(affine) @ affine.mT


def covariances(weight: Tensor, moment: Tensor) -> Tensor:
    """Covariance of W x per head over the tokens of the moment: [H, w, w] in fp64, from W [H, w, d]."""
    w, m = weight.detach().double(), moment.to(weight.device).double()
    return w @ (m[:-1, :-1] - torch.outer(m[:-1, -1], m[:-1, -1])) @ w.mT


def fitted_logits(queries: Tensor, keys: Tensor, kept: Tensor, ridge: float, *, constant: bool) -> Tensor:
    """M of one head, [r + 1, r], or [r, r] without the constant.

    Shapes: queries [q + 1, q + 1], second moment of [q 1]; keys [q, q], covariance; kept [r] int64.
    """
    gone = rest(kept, len(keys)).to(keys.device)
    given = torch.cat([kept, kept.new_tensor([len(keys)])]) if constant else kept
    right = queries[given][:, gone] @ keys[gone][:, kept]
    with one_thread():
        a, left = torch.linalg.eigh(queries[given][:, given])
        b, turn = torch.linalg.eigh(keys[kept][:, kept])
        lift = (ridge * a.clamp_min(0).mean() * b.clamp_min(0).mean()).clamp_min(_TINY)
        scaled = (left.mT @ right @ turn) / (torch.outer(a.clamp_min(0), b.clamp_min(0)) + lift)
        solved: Tensor = left @ scaled @ turn.mT
        return solved


@torch.no_grad()
def compensated(part: Attention, qk: Tensor, vo: Tensor, moment: Tensor, ridge: float) -> Attention:
    """All heads with these of their dimensions, the others made up for.

    Shapes: qk [H, q'] and vo [H, v'] int64; moment [d + 1, d + 1] of [x 1], fp64.
    """
    device = part.wq.device
    qk, vo = qk.to(device), vo.to(device)
    slim = part.keep(range(part.heads), qk, vo)
    wq, bq = _queries(part, slim, qk, moment, ridge)
    wo, bo = _outputs(part, vo, moment, ridge)
    return replace(slim, wq=wq, bq=bq, wo=wo, bo=bo)


def _queries(
    part: Attention, slim: Attention, kept: Tensor, moment: Tensor, ridge: float
) -> tuple[Tensor, Tensor | None]:
    """W_Q and b_Q that make up for the logits of the dimensions that go."""
    queries, keys = query_second_moment(part, moment), covariances(part.wk, moment)
    gain = part.query_gain(kept.shape[1])
    weights, biases = [], []
    for head, own in enumerate(kept):
        fit = fitted_logits(queries[head], keys[head], own, ridge, constant=slim.bq is not None)
        turn = torch.eye(len(own), dtype=fit.dtype, device=fit.device) + fit[: len(own)]
        weights.append((turn.mT @ slim.wq[head].double()).to(slim.wq))
        if slim.bq is not None:
            biases.append((turn.mT @ slim.bq[head].double() + gain * fit[-1]).to(slim.bq))
    return torch.stack(weights), torch.stack(biases) if biases else None


def _outputs(part: Attention, kept: Tensor, moment: Tensor, ridge: float) -> tuple[Tensor, Tensor | None]:
    """W_O and b_O that make up for the values that go; without an output bias, about zero instead of the mean."""
    moment = moment.to(part.wv.device)
    values = covariances(part.wv, moment)
    mean = part.wv.detach().double() @ moment[:-1, -1].double()
    if part.bv is not None:
        mean = mean + part.bv.detach().double()
    if part.bo is None:
        values, mean = values + mean.unsqueeze(2) * mean.unsqueeze(1), torch.zeros_like(mean)
    bias = None if part.bo is None else part.bo.detach().double()
    weights = []
    for head, own in enumerate(kept):
        gone, wo = rest(own, part.vo).to(own.device), part.wo[head].detach().double()
        gram = values[head][own][:, own]
        lift = (ridge * gram.diagonal().mean()).clamp_min(_TINY)
        with one_thread():
            fit = torch.linalg.solve(gram + lift * torch.eye(len(own)).to(gram), values[head][own][:, gone]).mT
        weights.append((wo[:, own] + wo[:, gone] @ fit).to(part.wo))
        if bias is not None:
            bias = bias + wo[:, gone] @ (mean[head][gone] - fit @ mean[head][own])
    return torch.stack(weights), None if bias is None else bias.to(part.wo)
