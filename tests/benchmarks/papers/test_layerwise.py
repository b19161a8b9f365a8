"""Figures that compare a model with its base, block by block."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from small_models import with_fewer_tokens

from benchmarks.papers import layerwise


def test_a_model_is_like_itself_and_less_like_one_that_lost_tokens(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit(depth=3), torch.randn(80, 3, 32, 32)
    same = layerwise.compared(network, deepcopy(network), images)
    assert same["cka"] == pytest.approx([1.0] * 3) and same["cosine"] == pytest.approx([1.0] * 3)
    assert same["residual"] == same["residual_base"] and all(ratio > 0 for ratio in same["residual"])
    fewer = layerwise.compared(network, with_fewer_tokens(network, 5, 0, 0), images)
    assert fewer["cosine"][0] == pytest.approx(1.0), "the class token of the first block has seen them all"
    assert fewer["cosine"][2] < 1 - 1e-6 and fewer["cka"][0] < 1 and fewer["residual_base"] == same["residual"]
    # Behind the last block are the tokens that the norm before the head sees.
    mean, token = layerwise.tokens_by_block(network, images)[-1]
    with torch.no_grad():
        seen: list[torch.Tensor] = []
        network.module.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        network(images)
    torch.testing.assert_close(mean.float(), seen[0].mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(token.float(), seen[0][:, 0], rtol=1e-4, atol=1e-5)


def test_cka_does_not_see_a_rotation_or_a_scale() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(50, 8, dtype=torch.float64), torch.randn(50, 8, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    assert layerwise.linear_cka(one, 3 * one @ rotation + 1) == pytest.approx(1.0)
    assert layerwise.linear_cka(one, other) < 0.6
