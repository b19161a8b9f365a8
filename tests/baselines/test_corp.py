"""CORP: ranked by energy, made up for by ridge regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained
from torch import Tensor

from edgevit.baselines.corp import METHOD, Config, compensated, complement, derive, fitted_logits, query_second_moment
from edgevit.data.task import open_task
from edgevit.derivation.feasibility import Target
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.problem import Problem
from edgevit.errors import DataError, OptionError
from edgevit.network.anatomy import Attention
from edgevit.network.model import describe


def opened(network: Any, folder: Path) -> Problem:
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.5, folder, shape="free")


def test_what_is_made_up_for_is_nearer_to_the_base(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    images = problem.task.validation
    whole = network_outputs(problem.network, images, problem.passes)
    lost = {}
    for compensate in (True, False):
        made = derive(problem, Config(compensate=compensate, calibration_images=48))
        found = network_outputs(made.network, images, problem.passes)
        lost[compensate] = divergence(problem.network.output, whole, found)
        assert made.facts["steps"] == 0
    assert lost[True] < 0.8 * lost[False]


def test_neurons_that_never_fire_go_first(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    silent = torch.arange(0, 256, 2)
    with torch.no_grad():
        for block in network.read():
            block.ffn.w1[silent] = 0
            block.ffn.b1[silent] = 0
    for block in derive(opened(network, tmp_path), Config(calibration_images=48)).plan.blocks:
        assert block.ffn is not None and len(block.ffn.neurons) < 160
        assert len(set(block.ffn.neurons.tolist()) & set(silent.tolist())) == max(block.ffn.width - 128, 0)


def test_nothing_is_trained_unless_asked_and_options_are_checked(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    assert METHOD.default_steps(Config(), 0.9, 10**6, 1) == 0
    with pytest.raises(OptionError, match=r"corp\.ridge=0 is not a number above 0"):
        Config(ridge=0.0)
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    with pytest.raises(DataError, match=r"corp\.calibration_images"):
        METHOD.check(Config(calibration_images=1), Target(problem.network, problem.budget, problem.policy, 1000))


# -- attention that makes up for the dimensions it loses --

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
            kept, gone = KEPT[head], complement(KEPT[head], W)
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
    gone = complement(kept, W)
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
