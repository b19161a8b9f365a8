"""What a linear probe could read of features in others: affine maps are free, and directions that are gone are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgevit.derivation.measure.divergence import divergence
from edgevit.derivation.measure.reading import unread
from edgevit.network.output import Features

WIDTH = 16


@pytest.fixture
def base() -> tuple[Tensor, Tensor]:
    """Features whose directions have variances of 1 to 1/16."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, WIDTH + 1).rsqrt()
    train, judge = (torch.randn(n, WIDTH, generator=generator) * scale + 3 for n in (400, 200))
    return train, judge


def test_an_affine_map_of_the_features_tells_all(base: tuple[Tensor, Tensor]) -> None:
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))).Q
    output, turned = Features(), [part @ turn * 2 - 1 for part in base]
    assert divergence(output, base[1], turned[1]) > 1
    assert unread(output, (base[0], turned[0]), (base[1], turned[1])) < 1e-4


def test_features_of_few_directions_are_nearer_and_tell_less(base: tuple[Tensor, Tensor]) -> None:
    """Four directions are kept as they are, or all of them at a third of their size."""
    mean = base[0].mean(0)
    few, small = [part.clone() for part in base], [mean + (part - mean) / 3 for part in base]
    for part in few:
        part[:, 4:] = mean[4:]
    output, (train, judge) = Features(), base
    assert divergence(output, judge, few[1]) < divergence(output, judge, small[1])
    assert unread(output, (train, few[0]), (judge, few[1])) > 10 * unread(output, (train, small[0]), (judge, small[1]))
    lost = divergence(output, judge, few[1])
    assert unread(output, (train, few[0]), (judge, few[1])) == pytest.approx(lost, rel=0.05)


def test_units_and_tokens_count_as_in_the_divergence(base: tuple[Tensor, Tensor]) -> None:
    noisy = [part + torch.randn(part.shape, generator=torch.Generator().manual_seed(2)) for part in base]
    pairs = list(zip(base, noisy, strict=True))
    plain = unread(Features(), *pairs)
    assert unread(Features(torch.full((WIDTH,), 2.0)), *pairs) == pytest.approx(plain / 4)
    tokens = [tuple(part.unflatten(0, (-1, 4)) for part in pair) for pair in pairs]
    assert unread(Features(), *tokens) == pytest.approx(plain)


def test_more_features_than_images_and_constant_ones_are_no_obstacle() -> None:
    wanted, constant = torch.randn(5, 8, generator=torch.Generator().manual_seed(3)), torch.ones(5, 8)
    assert 0 < unread(Features(), (wanted, constant), (wanted, constant)) < 1
    assert unread(Features(), (wanted, wanted), (wanted, wanted)) < 1e-3
