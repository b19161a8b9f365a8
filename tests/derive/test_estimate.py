"""The estimate before the work counts every part, and the passes over images show how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from edgevit.derive.estimate import Estimate, shown
from edgevit.progress import Silent, Stage


@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        (Estimate(61.2, 59, 121), "about 4 min: 61 s for baselines, 59 s for measuring, 2 min for training"),
        (Estimate(0.2, 0, 30), "about 30 s: 1 s for baselines, 30 s for training"),
        (Estimate(600, 1200, 7200), "about 2.5 h: 10 min for baselines, 20 min for measuring, 2.0 h for training"),
    ],
)
def test_an_estimate_is_told_in_the_unit_that_fits(estimate: Estimate, told: str) -> None:
    assert estimate.told() == f"{told}; less where the cache has it"


def test_a_pass_is_counted_in_images_and_leaves_no_hook(small_vit: Callable[..., Any]) -> None:
    counts: list[int] = []

    class Counting(Silent):
        @contextmanager
        def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
            assert (name, total, unit) == ("baselines", 5, "image")

            class Here:
                def update(self, done: int, **figures: float | None) -> None:
                    counts.append(done)

            yield Here()

    network = small_vit()
    with shown(network, Counting(), "baselines", 5), torch.inference_mode():
        for batch in torch.zeros(5, 3, 32, 32).split(2):
            network(batch)
    assert counts == [2, 4, 5] and not network._forward_hooks
