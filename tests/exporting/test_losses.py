"""What a rounded model may lose is counted in images, overall and in each class; test_gate.py has more."""

from __future__ import annotations

import torch

from edgevit.exporting.losses import allowed, by_class, loss
from edgevit.exporting.request import GateTolerances

LABELS = torch.arange(200) % 2
RIGHT = torch.ones(200)


def lost(*images: int) -> str | None:
    right = RIGHT.clone()
    right[list(images)] = 0
    return loss(by_class(["cat", "dog"], LABELS, RIGHT, right, right), GateTolerances(), "in INT8")


def test_two_images_may_be_lost_and_then_a_share() -> None:
    assert allowed(0.29, 100) == 29 and allowed(0.01, 50) == 2
    assert lost(0, 1) is None
    detail = "2% on 'cat' (of 100 images 100 are right in fp32 here, 98 in INT8)"
    assert lost(0, 1, 2) == f"loses 1.5% of top-1 on 200 images, worst {detail}"
    assert str(lost(*range(0, 12, 2))).startswith("loses 6% on 'cat'")
