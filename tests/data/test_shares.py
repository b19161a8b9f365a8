"""Intervals of shares against published ones."""

from __future__ import annotations

import pytest

from edgevit.data.shares import constant_text, share_text, wilson


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


@pytest.mark.parametrize(
    ("images_of", "top1", "is_told"),
    [
        ({"defective": 30, "functional": 75}, 82 / 105, True),  # its interval begins at 69.3 %, below 71.4 %
        ({"defective": 30, "functional": 75}, 90 / 105, False),
        ({"defective": 52, "functional": 52}, 0.5, False),  # plain chance, which others tell
        ({"defective": 0, "functional": 75}, 0.9, False),  # one class alone was judged
    ],
)
def test_a_top1_that_one_answer_for_all_images_may_reach_is_told(
    images_of: dict[str, int], top1: float, is_told: bool
) -> None:
    told = constant_text(images_of, top1)
    assert (told is not None) == is_told
    assert told is None or ("75 of 105 images are of the class functional" in told and "right on 71.43 %" in told)
