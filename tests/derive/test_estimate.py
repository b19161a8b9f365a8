"""The estimate before the work counts every part, and the passes over images show how far they are."""

from __future__ import annotations

import pytest

from edgevit.derive.estimate import Estimate


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
