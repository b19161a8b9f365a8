"""Where a plan grows from, and what a change of it is expected to take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from some_rounds import PRICES, SHAPES, a_round, exactly

from edgevit.latency.growth import AIMS, NEAR, growth, shrinking
from edgevit.latency.rounds import Round, Search


def alone(*rounds: Round, budget: float = 1.0) -> Search:
    return Search(budget, rounds)


def test_a_plan_grows_from_the_largest_within_the_budget_as_that_was_measured() -> None:
    thin = a_round(0.9, shape=2)
    found = growth(alone(a_round(1.2, shape=3), thin), PRICES)
    assert found is not None and found.at_least is thin.shape
    cost = thin.shape.terms(PRICES).times(found.factors).total
    assert list(found.limits()) == [pytest.approx(cost * aim / 0.9) for aim in AIMS]
    assert found.predicted(cost) == 0.9 and found.predicted(1.1 * cost) == pytest.approx(0.99)


def test_a_change_is_worth_what_it_was_worth_when_the_plan_last_grew() -> None:
    start = a_round(0.9, shape=2)
    grown = replace(a_round(0.93, predicted=0.98, shape=0), at_least=start.shape)
    assert grown.shape.contains(start.shape)
    found = growth(alone(a_round(1.2, shape=3), start, grown), PRICES)
    assert found is not None and found.at_least is grown.shape
    cost = found.cost
    assert found.predicted(1.1 * cost) == pytest.approx(0.93 * (1 + 0.1 * 0.03 / 0.08))
    more = replace(grown, predicted=0.92)
    found = growth(alone(a_round(1.2, shape=3), start, more), PRICES)
    assert found is not None
    assert found.predicted(1.1 * found.cost) == pytest.approx(0.93 * 1.1), "it took more than predicted"


def test_a_plan_that_contains_it_and_is_too_slow_tells_what_a_change_is_worth() -> None:
    thin, wide = a_round(0.9, shape=2), a_round(1.1, shape=0)
    assert wide.shape.contains(thin.shape)
    found = growth(alone(thin, wide, budget=0.99999), PRICES)
    assert found is not None
    of_thin, of_wide = (one.shape.terms(PRICES).times(found.factors).total for one in (thin, wide))
    assert found.predicted(of_wide) == pytest.approx(1.1)
    assert next(found.limits()) == pytest.approx(of_thin + 0.425 * (of_wide - of_thin), rel=1e-3)


def test_nothing_grows_where_nothing_is_within_the_budget_or_no_room_is_left() -> None:
    assert growth(alone(), PRICES) is None and growth(alone(a_round(1.1)), PRICES) is None
    full = growth(alone(Round("x", 1.0, SHAPES[0], 1.0, exactly(0.999))), PRICES)
    assert full is not None and list(full.limits()) == []


def test_a_plan_just_above_the_budget_shrinks_to_one_with_its_attentions() -> None:
    wide = a_round(1.01, shape=3)
    found = shrinking(alone(a_round(0.8, shape=2), wide), PRICES)
    assert found is not None and found.at_least == wide.shape.frame and wide.shape.contains(found.at_least)
    assert [(d.heads, d.qk, d.vo, d.ffn) for d in found.at_least.blocks] == [(2, 32, 32, 1)] * 2
    cost = wide.shape.terms(PRICES).times(found.factors).total
    assert list(found.limits()) == [pytest.approx(cost * aim / 1.01) for aim in AIMS]
    assert shrinking(alone(wide), PRICES) is not None, "no plan within the budget is needed"


def test_a_plan_shrinks_only_where_it_is_the_nearest_and_has_not_failed_to() -> None:
    wide = a_round(1.01, shape=3)
    assert shrinking(alone(), PRICES) is None
    assert shrinking(alone(a_round(NEAR + 0.01, shape=3)), PRICES) is None, "too far above"
    assert shrinking(alone(wide, a_round(0.97, shape=2)), PRICES) is None, "the plan within is nearer to the aim"
    assert shrinking(alone(a_round(0.9, shape=2), a_round(1.01, shape=0)), PRICES) is None, "it contains that one"
    failed = replace(a_round(1.02, shape=1), at_least=wide.shape.frame)
    assert shrinking(alone(wide, failed), PRICES) is None
    further = replace(a_round(1.005, shape=3), at_least=wide.shape.frame)
    assert shrinking(alone(wide, further), PRICES) is not None, "it shrank, and not far enough"
