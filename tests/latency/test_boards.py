"""Searches of two boards at once, and by which of the two they are judged."""

from __future__ import annotations

import pytest
from some_rounds import SHAPES, a_round, exactly

from edgevit.latency.boards import Searches
from edgevit.latency.rounds import AIM, Candidate, MeasuredFigure, Search


def pair(first: list[float], second: list[float]) -> Searches:
    """Rounds on a board with a budget of 1, and on one with a budget of 10."""
    return Searches(
        tuple(
            Search(budget, tuple(a_round(value, shape=i) for i, value in enumerate(values)))
            for budget, values in ((1.0, first), (10.0, second))
        )
    )


def test_one_board_is_judged_by_itself() -> None:
    search = Search(5.0, (a_round(4.9),))
    assert Searches((search,)).tightest is search and Searches((search,)).best == 0
    assert Searches((search,)).limits == (search.limit,)


def test_a_round_is_as_good_as_on_the_board_where_it_takes_most_of_the_budget() -> None:
    searches = pair([0.98, 0.7, 0.9], [10.4, 9.85, 5])
    assert [one.measured.value for one in searches.tightest.rounds] == pytest.approx([1.04, 0.985, 0.9])
    assert searches.best == 1 and searches.tightest.is_done, "met on the second, and far below on the first"
    assert [pair([0.5], [9.0]).decides, pair([0.95], [9.0]).decides, Searches((Search(1), Search(2))).decides] == [
        1, 0, 0
    ]  # fmt: skip
    assert pair([], []).best is None


def test_the_interval_is_that_of_the_same_board_and_in_shares() -> None:
    wide = MeasuredFigure(9.9, 9.6, 10.2, 8)
    searches = Searches((Search(1.0), Search(10.0))).with_round(
        Candidate(SHAPES[0], "x"), (0.9, 9.8), (0.5, 9.7), (exactly(0.6), wide), SHAPES[2]
    )
    (judged,) = searches.tightest.rounds
    assert (judged.measured.low, judged.measured.high, judged.predicted) == pytest.approx((0.96, 1.02, 0.97))
    assert not searches.tightest.is_done, "it may be above the budget"
    first, second = (search.rounds[0] for search in searches.each)
    assert (first.limit, first.measured.value, second.limit, second.measured) == (0.9, 0.6, 9.8, wide)
    assert first.name == second.name == "x" and first.at_least == SHAPES[2]


def test_only_the_board_that_decides_asks_for_more_than_its_aim() -> None:
    searches = pair([0.5, 0.45], [12.0, 10.5])
    assert searches.decides == 1
    mine, its = searches.limits
    assert mine == AIM and its == searches.each[1].limit < 10 * AIM
