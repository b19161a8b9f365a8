"""Features are compared by their cosines, and by which images are nearest."""

from __future__ import annotations

import pytest
import torch

from edgevit.network.likeness import Likeness, same_neighbours


def test_tokens_are_compared_one_by_one_and_images_by_their_means() -> None:
    likeness, random = Likeness(), torch.Generator().manual_seed(0)
    reference = torch.randn(24, 3, 8, generator=random)
    features = torch.cat([reference[:, :1], -reference[:, 1:2], 2 * reference[:, 2:]], 1)
    for part in (slice(16), slice(16, None)):
        likeness.add(reference[part], features[part])
    record = likeness.record()
    assert record.images == 24 and record.cosine == pytest.approx((1 - 1 + 1) / 3, abs=1e-6)
    assert record.same_neighbours == same_neighbours(reference.mean(1), features.mean(1))


def test_the_same_neighbours_are_counted() -> None:
    points = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    assert same_neighbours(points, 3 * points) == 1
    assert same_neighbours(points, torch.randn(60, 8, generator=torch.Generator().manual_seed(1))) < 0.4
    assert same_neighbours(points[:19], points[:19]) is None
