"""Intervals of shares against published ones."""

from __future__ import annotations

import pytest

from edgevit.data.shares import share_text, wilson


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_published(right: int, total: int, low: float, high: float) -> None:
    """The last two rows are of Newcombe (1998), Table I, method 3."""
    assert wilson(right, total) == pytest.approx((low, high), abs=5e-5)


def test_an_interval_contains_its_share_and_ends_at_0_or_1_where_that_is_the_share() -> None:
    for n in range(1, 2001):
        assert (wilson(0, n)[0], wilson(n, n)[1]) == (0.0, 1.0), n
        for right in {0, 1, n // 3, n - 1, n}:
            low, high = wilson(right, n)
            assert low <= right / n <= high and low < high, (right, n)


def test_a_share_is_told_with_its_interval() -> None:
    assert share_text(81 / 263, 263) == "30.80 % (25.5 to 36.6)"
