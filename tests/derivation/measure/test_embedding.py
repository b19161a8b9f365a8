"""Directions are those that the answers feel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from edgevit.derivation.measure.embedding import (
    TokenMoments,
    enough_images,
    measure_tokens,
    stable_images,
    token_weights,
)
from edgevit.derivation.measure.statistics import from_triangle
from edgevit.derivation.measure.thinning import Thinning
from edgevit.derivation.solve.embedding import flat_basis
from edgevit.errors import DataError
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

PASSES = open_passes(Training(device="cpu"))
COLUMNS = [3, 7, 9]


@pytest.mark.parametrize("args", [{}, {"global_pool": "avg"}], ids=["class token", "pooled before its norm"])
def test_tokens_that_the_answers_do_not_feel_weigh_nothing(small_vit: Any, task: Any, args: dict[str, Any]) -> None:
    network = small_vit(**args)
    weights = token_weights(network.with_columns(COLUMNS), task.train.subset(16), PASSES)
    assert len(weights) == 5 and all((w >= 0).all() and w.sum() > 0 for w in weights)
    last = weights[-1]
    if args:
        assert last.shape == (1,), "the last norm sees pooled tokens"
    else:
        assert last[0] > 0 and not last[1:].any(), "the head reads the class token alone"


def test_the_first_directions_hold_what_the_tokens_have(small_vit: Any, task: Any) -> None:
    """Tokens of a network without blocks are patches and positions: 17 tokens' means span what varies least often."""
    network = small_vit()
    images = task.train.subset(16)
    even = [torch.ones(17).double()] * 4 + [torch.ones(17).double()]
    (directions,) = measure_tokens(network, images, even, PASSES).directions
    assert directions.shape == (64, 63)
    seen: list[torch.Tensor] = []
    norms = [norm.module for norm in network.token_norms]
    hooks = [n.register_forward_hook(lambda n, x, _: seen.append(F.layer_norm(x[0], (64,), eps=n.eps).flatten(0, 1)))
             for n in norms]  # fmt: skip
    with torch.no_grad():
        for batch, _ in images.batches(16):
            network(batch)
    for hook in hooks:
        hook.remove()
    tokens = torch.cat(seen).double()
    held = (tokens @ directions).square().sum(0)
    assert (held[:-1] >= held[1:] - 1e-6 * held[0]).all(), "the largest first"
    best = torch.linalg.eigvalsh(flat_basis(64).mT @ tokens.mT @ tokens @ flat_basis(64)).flip(0)
    torch.testing.assert_close(held, best, rtol=1e-4, atol=1e-4 * float(best[0]))


@pytest.mark.parametrize("args", [{}, {"global_pool": "avg"}], ids=["class token", "pooled before its norm"])
def test_thinned_moments_are_those_of_the_tokens_taken(small_vit: Any, task: Any, args: dict[str, Any]) -> None:
    network, images = small_vit(**args), task.train.subset(8)
    norms = [norm.module for norm in network.token_norms]
    even = [*[torch.ones(17).double()] * 4, torch.ones(1 if args else 17).double()]
    moments = TokenMoments(network, even, PASSES, {0: Thinning(3, 17, 1)})
    seen: dict[int, torch.Tensor] = {}
    seeing = (norms, lambda i, given, _: seen.update({i: given[0]}))
    PASSES.run(network, images, lambda *_: None, [moments.observer, seeing], stage="directions of tokens")
    held = moments.statistics().moments
    places = torch.arange(8 * 17)
    patches = torch.where(places % 17 == 0, 1.0, 3.0 * (places % 3 == 0))
    for i, weights in ((0, patches), (4, torch.ones(8) if args else patches)):
        x = F.layer_norm(seen[i], (64,), eps=norms[i].eps).reshape(-1, 64).double()
        ones = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        wanted = ones.mT @ (weights.double()[:, None] * ones) / weights.sum()
        torch.testing.assert_close(from_triangle(held[i].mean(0)), wanted, rtol=1e-3, atol=1e-4)


def test_tokens_that_are_no_numbers_are_refused(small_vit: Any, task: Any) -> None:
    network = small_vit()
    with torch.no_grad():
        network.module.cls_token.fill_(torch.nan)
    with pytest.raises(DataError, match="tokens are not finite; check the base's weights"):
        measure_tokens(network, task.train.subset(4), [torch.ones(17).double()] * 5, PASSES)


def test_enough_images_have_as_many_tokens_as_there_are_directions(small_vit: Any) -> None:
    assert enough_images(small_vit()) == 4  # 64 channels, 17 tokens
    assert stable_images(small_vit()) == 128
