"""Which preprocessing does better than what a base is read with, by counts alone; and what is near chance."""

from __future__ import annotations

import pytest

from edgevit.data.assumptions import Sureness
from edgevit.data.neighbours import better_neighbours, preprocessing_hint
from edgevit.records.derivation import BaseCheckRecord, NeighbourRecord


@pytest.mark.parametrize(
    ("full", "restricted", "images", "outputs", "classes", "near"),
    [
        (0, 850, 3000, 10, 3, True),  # names in reverse
        (2340, 2680, 3000, 10, 3, False),
        (300, 1000, 3000, 10, 3, True),
        (2, 900, 1000, 1000, 10, True),  # neighbours of the right outputs: shifted by one
        (40, 600, 1000, 1000, 10, False),  # odd photographs, but it knows them
        (700, 52, 100, 1000, 2, True),  # it cannot tell these two apart
        (3, 4, 6, 2, 2, True),
        (5, 5, 6, 2, 2, False),  # few images, most of them right
        (1, 1, 1, 10, 2, False),
    ],
)
def test_near_chance_is_decided_by_its_interval(
    full: int, restricted: int, images: int, outputs: int, classes: int, near: bool
) -> None:
    full = min(full, restricted)
    assert Sureness("test", images, full, restricted, outputs, classes).near_chance is near


def check(right: int, *counts: tuple[int, int]) -> BaseCheckRecord:
    tried = tuple(NeighbourRecord(f"--option {i}", *pair) for i, pair in enumerate(counts))
    return BaseCheckRecord(300, right, tried, near_chance=False)


@pytest.mark.parametrize(
    ("right", "counts", "better"),
    [
        (188, [(77, 5), (0, 40), (20, 4)], [0, 2]),  # the best first
        (188, [(20, 4), (0, 40), (77, 5)], [2, 0]),
        (290, [(6, 0), (0, 0), (0, 0)], [0]),  # two points, and no image lost: at the limit of three neighbours
        (290, [(5, 0), (0, 0), (0, 0)], []),
        (290, [(8, 2), (0, 0), (0, 0)], []),  # as far apart, and within chance
        (3, [(23, 0), (0, 0), (0, 0)], []),  # far better, and below chance itself: 8.7 % of ten classes
        (3, [(230, 0), (0, 0), (0, 0)], [0]),
    ],
)
def test_a_neighbour_is_better_by_more_than_chance_and_is_above_chance_itself(
    right: int, counts: list[tuple[int, int]], better: list[int]
) -> None:
    record = check(right, *counts)
    assert [n.option for n in better_neighbours(record, 10)] == [f"--option {i}" for i in better]


def test_the_hint_names_the_best_option_first_with_both_shares() -> None:
    assert preprocessing_hint(check(188, (20, 4), (77, 5), (0, 9)), 10) == (
        "with --option 1 the base is right on 86.7% of 300 validation images, with --option 0 on 68.0%, and on 62.7% "
        "as it is read now: give that option if it was trained so"
    )
    assert preprocessing_hint(check(290, (1, 0)), 10) is None
