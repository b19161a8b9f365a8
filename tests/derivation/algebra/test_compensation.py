"""What stays makes up for what goes: exactly where it can, and never worse over the tokens than leaving it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edgevit.derivation.algebra.compensation import compensated, fitted_logits, query_second_moment, rest
from edgevit.network.anatomy import Attention

H, W, D, N = 2, 6, 8, 400
KEPT = torch.tensor([[0, 2, 3, 5], [1, 2, 4, 5]])


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(*, bias: bool = True) -> Attention:
    def of(seed: int, *shape: int) -> Tensor | None:
        return drawn(*shape, seed=seed) if bias else None

    return Attention(
        drawn(H, W, D, seed=1), of(2, H, W), drawn(H, W, D, seed=3), of(4, H, W), drawn(H, W, D, seed=5), of(6, H, W),
        drawn(H, D, W, seed=7), of(8, D),
    )  # fmt: skip


def tokens() -> Tensor:
    return drawn(N, D, seed=9) @ drawn(D, D, seed=10) + drawn(D, seed=11)


def moment(x: Tensor) -> Tensor:
    one = torch.cat([x, torch.ones(len(x), 1).to(x)], dim=1)
    return one.mT @ one / len(x)


def rows(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """[H, N, w]"""
    return torch.einsum("nd,hwd->hnw", x, weight) + (0 if bias is None else bias.unsqueeze(1))


def logits(part: Attention, x: Tensor) -> Tensor:
    """[H, N, N] less their mean over keys, which softmax ignores."""
    found = rows(part.wq, part.bq, x) @ rows(part.wk, part.bk, x).mT / part.qk**0.5
    return found - found.mean(2, keepdim=True)


def outputs(part: Attention, x: Tensor) -> Tensor:
    """What each token's values are turned into, summed over heads: [N, d]."""
    found = torch.einsum("hnv,hdv->nd", rows(part.wv, part.bv, x), part.wo)
    return found if part.bo is None else found + part.bo


def test_what_is_an_affine_function_of_what_stays_is_made_up_for_exactly() -> None:
    part, x = attention(), tokens()
    repeated = {}
    for name in ("wq", "wk", "wv"):
        weight = getattr(part, name).clone()
        for head in range(H):
            kept, gone = KEPT[head], rest(KEPT[head], W)
            mix = drawn(len(gone), len(kept), seed=20 + head)
            weight[head, gone] = mix @ weight[head, kept]
        repeated[name] = weight
    part = replace(part, **repeated)
    slim = compensated(part, KEPT, KEPT, moment(x), ridge=1e-12)
    torch.testing.assert_close(logits(slim, x), logits(part, x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs(slim, x), outputs(part, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_compensation_loses_less_than_leaving_out(bias: bool) -> None:
    part, x = attention(bias=bias), tokens()
    left_out = part.keep(range(H), KEPT, KEPT)
    slim = compensated(part, KEPT, KEPT, moment(x), ridge=1e-6)
    assert (slim.bq is None) == (not bias) and (slim.bo is None) == (not bias)
    for of in (logits, outputs):
        lost = [float((of(made, x) - of(part, x)).square().mean()) for made in (slim, left_out)]
        assert lost[0] < 0.9 * lost[1], of.__name__


def test_the_fit_of_logits_is_the_best_over_independent_pairs() -> None:
    """Against the least squares over all pairs of tokens, keys about their mean."""
    part, x, kept = attention(), tokens()[:40], KEPT[0]
    q, k = rows(part.wq, part.bq, x)[0], rows(part.wk, None, x)[0]
    k = k - k.mean(0)
    gone = rest(kept, W)
    given = torch.cat([q[:, kept], torch.ones(len(q), 1).to(q)], dim=1)
    design = torch.einsum("na,mb->nmab", given, k[:, kept]).reshape(len(x) ** 2, -1)
    target = (q[:, gone] @ k[:, gone].mT).reshape(-1, 1)
    best = torch.linalg.lstsq(design, target).solution.reshape(given.shape[1], len(kept))
    fit = fitted_logits(query_second_moment(part, moment(x))[0], k.mT @ k / len(k), kept, 1e-12, constant=True)
    torch.testing.assert_close(fit, best, rtol=1e-5, atol=1e-6)


def test_a_strong_ridge_makes_up_for_nothing() -> None:
    part, x = attention(), tokens()
    slim, left_out = compensated(part, KEPT, KEPT, moment(x), 1e12), part.keep(range(H), KEPT, KEPT)
    torch.testing.assert_close(slim.wq, left_out.wq, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slim.wo, left_out.wo, rtol=1e-6, atol=1e-6)


def test_everything_kept_changes_nothing() -> None:
    part, x = attention(), tokens()
    whole = torch.arange(W).repeat(H, 1)
    slim = compensated(part, whole, whole, moment(x), 1e-3)
    torch.testing.assert_close(logits(slim, x), logits(part, x))
    torch.testing.assert_close(outputs(slim, x), outputs(part, x))
