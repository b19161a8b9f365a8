"""Where a plan grows from, and what a change of it is expected to take."""

from __future__ import annotations

import pytest
from some_rounds import PRICES, SHAPES, a_round, exactly

from edgevit.meet.growth import AIMS, growth
from edgevit.meet.rounds import Round, Search


def test_a_plan_grows_from_the_largest_within_the_budget_as_that_was_measured() -> None:
    thin = a_round(0.9, shape=2)
    found = growth(Search(1.0, (a_round(1.2, shape=3), thin)), PRICES)
    assert found is not None and found.start is thin
    cost = thin.shape.terms(PRICES).times(found.factors).total
    assert list(found.limits(1.0, PRICES)) == [pytest.approx(cost * aim / 0.9) for aim in AIMS]
    assert found.predicted(cost, PRICES) == 0.9 and found.predicted(1.1 * cost, PRICES) == pytest.approx(0.99)


def test_a_plan_that_contains_it_and_is_too_slow_tells_what_a_change_is_worth() -> None:
    thin, wide = a_round(0.9, shape=2), a_round(1.1, shape=0)
    assert wide.shape.contains(thin.shape)
    found = growth(Search(1.0, (thin, wide)), PRICES)
    assert found is not None
    of_thin, of_wide = (one.shape.terms(PRICES).times(found.factors).total for one in (thin, wide))
    assert found.predicted(of_wide, PRICES) == pytest.approx(1.1)
    assert next(found.limits(0.99999, PRICES)) == pytest.approx(of_thin + 0.425 * (of_wide - of_thin), rel=1e-3)


def test_nothing_grows_where_nothing_is_within_the_budget_or_no_room_is_left() -> None:
    assert growth(Search(1.0), PRICES) is None and growth(Search(1.0, (a_round(1.1),)), PRICES) is None
    full = growth(Search(1.0, (Round("x", 1.0, SHAPES[0], 1.0, exactly(0.999)),)), PRICES)
    assert full is not None and list(full.limits(1.0, PRICES)) == []
