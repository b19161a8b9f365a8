"""Thinned sums: as many tokens as are enough, every class token among them, and on average the sums of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from edgevit.derivation.measure.thinning import ALL, ENOUGH_TOKENS, Thinning, thinnings


def test_of_many_tokens_as_many_are_taken_as_determine_the_widest_ffn(small_vit: Any) -> None:
    network = small_vit()  # 17 tokens
    for images, every in ((512, 1), (5000, 3), (25_000, 16)):  # one in 17 would be the same place in every image
        assert thinnings(network, images, 8) == [Thinning(every, 17, 1)] * 2
    widest = max(block.mlp.fc1.out_features for block in network.module.blocks)
    assert thinnings(network, 5000, ENOUGH_TOKENS // widest + 1)[0].every == 3
    assert thinnings(network, 5000, 2 * ENOUGH_TOKENS // widest)[0].every == 1


def test_a_stage_of_fewer_tokens_is_thinned_less(small_vit: Any) -> None:
    network = small_vit("swin_tiny_patch4_window7_224")  # 64 tokens, then 16
    assert thinnings(network, 5000, 8) == [Thinning(11, 64, 0), Thinning(3, 16, 0)]


def test_every_class_token_is_taken_and_all_places_alike() -> None:
    images, thinned = 15, Thinning(3, 5, 1)
    places = torch.arange(images * 5).view(images, 5, 1)
    taken = thinned.of(places).flatten()
    assert set(range(0, images * 5, 5)) <= set(taken.tolist())
    assert (taken % 5).bincount().tolist() == [15, 5, 5, 5, 5]
    values = torch.ones(images, 5, 1)
    weights = thinned.weights(values, None)
    assert weights is not None
    assert (taken % 5).bincount(weights).tolist() == [15] * 5
    by_token = torch.arange(1.0, 6.0)
    weights = thinned.weights(values, by_token)
    assert weights is not None
    assert (taken % 5).bincount(weights).tolist() == (15 * by_token).tolist()


def test_where_all_are_taken_they_are_as_they_were() -> None:
    tokens, by_token = torch.randn(4, 5, 3), torch.rand(5)
    assert torch.equal(ALL.of(tokens), tokens.flatten(0, 1))
    assert ALL.weights(tokens, None) is None
    weights = ALL.weights(tokens, by_token)
    assert weights is not None and torch.equal(weights, by_token.repeat(4))


def test_padding_weighs_nothing() -> None:
    tokens = torch.ones(4, 5, 3)
    tokens[1, 2:] = tokens[3, 4:] = 0
    real = (tokens != 0).any(-1).float()
    for every in (1, 3):
        plain = Thinning(every, 5, 1)
        thinned = replace(plain, real=lambda tokens: (tokens != 0).any(-1))
        for by_token in (None, torch.arange(1.0, 6.0)):
            weights, of_all = thinned.weights(tokens, by_token), plain.weights(tokens, by_token)
            expected = thinned.of(real.unsqueeze(-1)).flatten()
            assert weights is not None and torch.equal(weights, expected if of_all is None else expected * of_all)
