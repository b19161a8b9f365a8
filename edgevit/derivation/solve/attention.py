"""Attention in closed form: the products of its weights, their factors at any width, and what constants make up for.

W_Q^T W_K gives the logits and W_V^T W_O^T maps tokens to outputs; either can be factorised for the weights, or for the
tokens that the attention is given. Exact where [W_Q b_Q] and W_V of each head have no more rank than is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.derivation.solve.factorise import Spectrum, decompose, factors, singular_values
from edgevit.network.anatomy import Attention

_FLOOR = 1e-4  # least share of the mean variance that a direction keeps

_Pair = tuple[Tensor, Tensor]  # A [H, w, m] and B [H, w, n] of one attention, whose products A^T B matter


def query_matrix(part: Attention) -> Tensor:
    """[W_Q b_Q] per head: [H, q, d + 1], or [H, q, d] without a bias: the query bias is factorised with the weights."""
    return part.wq if part.bq is None else torch.cat([part.wq, part.bq.unsqueeze(-1)], dim=-1)


def _qk_pair(part: Attention) -> _Pair:
    """The pair whose product gives the attention logits: [W_Q b_Q] [H, q, d + 1] and W_K [H, q, d].

    The key bias adds the same to every key's logit of a query, which softmax ignores: it is dropped, exactly.
    """
    return query_matrix(part).detach(), part.wk.detach()


def _vo_pair(part: Attention) -> _Pair:
    """The pair whose product maps tokens to outputs: W_V [H, v, d] and W_O^T [H, v, d]."""
    return part.wv.detach(), part.wo.detach().mT


def _output_bias(part: Attention) -> Tensor | None:
    """b_O + sum_h W_O b_V: attention rows sum to one, so the value bias passes through unchanged."""
    if part.bv is None:
        return part.bo
    folded: Tensor = torch.einsum("hdv,hv->d", part.wo, part.bv)
    return folded if part.bo is None else part.bo + folded


def _groups_of_one_shape(pairs: Sequence[_Pair]) -> Iterator[list[int]]:
    """Group the attentions whose pairs have one shape: each group is one batched call."""
    for shape in sorted({(*a.shape, *b.shape) for a, b in pairs}):
        yield [i for i, (a, b) in enumerate(pairs) if (*a.shape, *b.shape) == shape]


def head_singular_values(parts: Sequence[Attention]) -> list[tuple[Tensor, Tensor]]:
    """Singular values of W_Q^T W_K and of W_V^T W_O^T for each attention: ([H, q], [H, v]), descending."""
    spectra: list[dict[int, Tensor]] = [{}, {}]
    logits = [(b.wq.detach(), b.wk.detach()) for b in parts]  # Eq. 6 is over the weights alone
    for values, pairs in zip(spectra, (logits, [_vo_pair(b) for b in parts]), strict=True):
        for members in _groups_of_one_shape(pairs):
            of_members = singular_values([pairs[i][0] for i in members], [pairs[i][1] for i in members])
            values.update(zip(members, of_members, strict=True))
    return [(spectra[0][i], spectra[1][i]) for i in range(len(parts))]


@dataclass(frozen=True)
class Metrics:
    """The metrics in which the error of one attention's factors is measured, from the moment of its input tokens."""

    query: Tensor  # [s, s] second moment of the queries' inputs: [x 1], or x where queries have no bias
    key: Tensor  # [d, d] covariance of x: softmax ignores what all keys of a query have in common
    mean: Tensor  # [d] mean of x


def metrics(moment: Tensor, query_side: int) -> Metrics:
    """Split the moment [d + 1, d + 1] of [x 1] into the metrics of an attention.

    Every direction keeps at least the share FLOOR of the mean variance, or FLOOR itself where all inputs are zero:
    where the calibration images say nothing, because there are fewer tokens than directions, the weights decide, and
    nothing is ever divided by zero.
    """
    moment = moment.double()
    embed = len(moment) - 1
    mean = moment[:-1, -1]
    spread = moment.diagonal()[:-1].mean()
    least = _FLOOR * torch.where(spread > 0, spread, 1.0)
    eye = torch.eye(embed + 1, dtype=moment.dtype, device=moment.device)
    query = (moment + least * eye)[:query_side, :query_side]
    return Metrics(query, moment[:-1, :-1] - torch.outer(mean, mean) + least * eye[:-1, :-1], mean)


Spectra = tuple[
    Spectrum, Spectrum
]  # the decomposed products of an attention, QK and VO: any widths can be cut from them


def _decompose(
    pairs: Sequence[_Pair], metrics_a: Sequence[Tensor] | None, metrics_b: Sequence[Tensor] | None
) -> tuple[Spectrum, ...]:
    """Decompose each attention's product in the metrics of its two sides; None measures the weights."""
    spectra: dict[int, Spectrum] = {}
    for members in _groups_of_one_shape(pairs):
        sides = [[pairs[i][side] for i in members] for side in (0, 1)]
        of_members = [None if m is None else [m[i] for i in members] for m in (metrics_a, metrics_b)]
        spectra.update(zip(members, decompose(*sides, *of_members), strict=True))
    return tuple(spectra[i] for i in range(len(pairs)))


def attention_spectra(
    parts: Sequence[Attention],
    moments: Sequence[Tensor] | None = None,
    query_moments: Sequence[Tensor] | None = None,
) -> list[Spectra]:
    """Decompose W_Q^T W_K and W_V^T W_O^T of every head (Vulcan, Eq. 10 and 11).

    With `moments` ([d + 1, d + 1] each) the error of logits and values over those inputs is minimised instead of
    the error of the weights. `query_moments`, of the same shapes, weight tokens by the sensitivity of their queries.
    """
    logits, outputs = [_qk_pair(b) for b in parts], [_vo_pair(b) for b in parts]
    if moments is None:
        return list(zip(_decompose(logits, None, None), _decompose(outputs, None, None), strict=True))
    device = parts[0].wq.device
    token_metrics = [metrics(m.to(device), a.shape[-1]) for m, (a, _) in zip(moments, logits, strict=True)]
    of_queries = [m.to(device) for m in query_moments or moments]
    queries = [metrics(m, a.shape[-1]).query for m, (a, _) in zip(of_queries, logits, strict=True)]
    # Attention averages values over tokens, so W_O sees no metric; and what all tokens share passes into the bias, if
    # there is one.
    values = [
        m.key if b.has_output_bias else m.key + torch.outer(m.mean, m.mean)
        for b, m in zip(parts, token_metrics, strict=True)
    ]
    of_logits = _decompose(logits, queries, [m.key for m in token_metrics])
    return list(zip(of_logits, _decompose(outputs, values, None), strict=True))


def narrow(
    parts: Sequence[Attention],
    widths: Sequence[tuple[int, int]],
    moments: Sequence[Tensor] | None = None,
    spectra: Sequence[Spectra] | None = None,
) -> list[Attention]:
    """Factorise every head of every attention to these widths of QK and VO, from `spectra` if given.

    Queries and keys that are rotated stay as they are.

    Scale: the slim attention divides its logits by sqrt(q'), so W_Q' carries sqrt(q' / q). With `moments`, the mean of
    what the values lose goes into the output bias, if there is one: attention rows sum to one, so it passes through
    exactly.
    """
    spectra = spectra or attention_spectra(parts, moments)
    narrowed = []
    for i, (part, (of_logits, of_outputs), (queries, values)) in enumerate(zip(parts, spectra, widths, strict=True)):
        wv, wo = factors(of_outputs, *_vo_pair(part), values)
        slim = replace(_narrow_queries(part, queries, of_logits), wv=wv, bv=None, wo=wo.mT)
        bias = _output_bias(part)
        if moments is not None and bias is not None:
            bias = bias + _mean_output(part, moments[i]) - _mean_output(slim, moments[i])
        narrowed.append(replace(slim, bo=bias))
    return narrowed


def _narrow_queries(part: Attention, width: int, spectrum: Spectrum) -> Attention:
    """Narrow queries and keys to this width; rotated ones keep theirs, as they have only one basis."""
    if part.rotary is not None:
        part.check_qk(width)
        return part
    wq, wk = factors(spectrum, *_qk_pair(part), width)
    wq, embed = wq * part.query_gain(width), part.embed
    return replace(part, wq=wq[..., :embed], bq=None if part.bq is None else wq[..., embed], wk=wk, bk=None)


def mean_values(part: Attention, moment: Tensor) -> Tensor:
    """W_V m of the mean token m, per head: [H, v]. An output bias, if there is one, compensates what is lost of it."""
    values: Tensor = part.wv.detach() @ moment[:-1, -1].to(part.wv)
    return values


def _mean_output(part: Attention, moment: Tensor) -> Tensor:
    """sum_h W_O W_V m of the mean token m: [d]."""
    output: Tensor = torch.einsum("hdv,hv->d", part.wo.detach(), mean_values(part, moment))
    return output


@torch.no_grad()
def keep_heads(part: Attention, heads: Sequence[int], moment: Tensor) -> Attention:
    """Keep these heads; the mean output of the others, over the tokens of the moment, goes into the output bias."""
    if len(heads) == part.heads:
        return part
    fewer = part.keep(heads)
    if not part.has_output_bias:
        return fewer
    lost = _mean_output(part, moment) - _mean_output(fewer, moment)
    before, after = _output_bias(part), _output_bias(fewer)
    if before is not None and after is not None:
        lost = lost + before - after  # what the dropped value biases passed through
    return replace(fewer, bo=lost if part.bo is None else part.bo + lost)


def reduced(
    part: Attention, heads: Sequence[int], widths: tuple[int, int], moment: Tensor, spectra: Spectra
) -> Attention:
    """Keep these heads at these QK and VO widths, for the inputs of the moment; `spectra` are those of all heads."""
    index = list(heads)
    of_logits, of_outputs = (Spectrum(*(tensor[index] for tensor in vars(of_all).values())) for of_all in spectra)
    (slim,) = narrow([keep_heads(part, heads, moment)], [widths], [moment], [(of_logits, of_outputs)])
    return slim
