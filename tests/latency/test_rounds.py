"""What measurements say of a table, and what is allocated next."""

from __future__ import annotations

import pytest
from some_rounds import BASE, PRICES, SHAPES, TABLE, a_round, exactly
from some_tables import rows

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.prices import Prices
from edgevit.latency.rounds import AIM, PRIOR, MeasuredFigure, Round, Search, Shape, Terms, correct
from edgevit.records.model import BlockDims


@pytest.fixture(scope="module")
def prices() -> Prices:
    return PRICES


def test_the_terms_of_a_plan_add_up_to_what_the_table_says_it_costs(prices: Prices) -> None:
    for shape in SHAPES:
        assert shape.terms(prices).total == pytest.approx(prices.cost(shape.blocks))
    one_site = Shape((BlockDims(0, 0, 0, 64), BASE), (1, 3))
    assert one_site.terms(prices) == Terms(1.0, 1.0, 4.0, pytest.approx(-0.1))
    assert one_site.terms(prices).total == pytest.approx(prices.cost(one_site.blocks))


def test_without_measurements_nothing_is_corrected() -> None:
    assert correct([]) == Terms(1, 1, 1, 1)


def test_one_measurement_is_explained_by_what_costs_most(prices: Prices) -> None:
    terms = SHAPES[1].terms(prices)  # attention 4, FFN 2
    found = correct([(terms, exactly(1.2 * terms.total))])
    assert terms.times(found).total == pytest.approx(1.2 * terms.total, rel=0.01)
    assert found.attention > found.ffn > 1 and terms.largest == "attention"


def test_the_factors_are_found_again_where_measurements_tell_them_apart(prices: Prices) -> None:
    true = Terms(1.3, 0.8, 1.2, 1.0)
    seen = [(shape.terms(prices), exactly(shape.terms(prices).times(true).total)) for shape in SHAPES]
    found = correct(seen)
    assert found.attention == pytest.approx(0.8, abs=0.06) and found.ffn == pytest.approx(1.2, abs=0.06)
    assert found.fixed == pytest.approx(1.3, abs=0.25), "it is a small part of each"


def test_noise_is_believed_no_more_than_the_table(prices: Prices) -> None:
    terms = SHAPES[0].terms(prices)
    value = 1.3 * terms.total
    sure, doubtful = (
        correct([(terms, MeasuredFigure(value, value * (1 - w), value * (1 + w), 8))]) for w in (0.0, 0.6)
    )
    assert 1 < terms.times(doubtful).total / terms.total < 1.15 < terms.times(sure).total / terms.total


def test_the_last_measurement_counts_most(prices: Prices) -> None:
    terms = SHAPES[0].terms(prices)
    before, after = exactly(1.2 * terms.total), exactly(0.9 * terms.total)
    found = terms.times(correct([(terms, before), (terms, after)])).total
    assert abs(found - after.value) < abs(found - before.value)


def test_no_factor_makes_a_term_cost_nothing() -> None:
    terms = Terms(0.01, 1.0, 1.0, 0.0)
    assert min(correct([(terms, exactly(0.01))]).values) >= 0.2
    assert PRIOR["attention"] < 1


@pytest.mark.parametrize(
    ("values", "outcome", "is_done"),
    [
        ([0.985], "met", True),
        ([0.96], "under", False),
        ([1.01], "over", False),
        ([0.96, 0.95, 0.9, 0.94, 0.93], "under", True),
        ([1.3, 0.99], "met", True),
    ],
)
def test_a_budget_is_met_within_three_percent_under_it(values: list[float], outcome: str, is_done: bool) -> None:
    search = Search(1.0, tuple(a_round(value) for value in values))
    assert search.best is not None
    assert (search.outcome(search.best.measured), search.is_done) == (outcome, is_done)


def test_an_interval_that_reaches_above_the_budget_asks_for_another_round_unless_that_could_not_do_better() -> None:
    assert not Search(1.0, (a_round(0.995, width=0.01),)).is_done
    assert Search(1.0, (a_round(0.98, width=0.03),)).is_done
    sure, larger = a_round(0.975, width=0.01), a_round(0.999, width=0.01)
    assert Search(1.0, (larger, sure)).best is sure


def test_an_interval_that_reaches_below_the_window_asks_for_another_round_unless_it_is_wider_than_that() -> None:
    low, sure = a_round(0.972, width=0.01), a_round(0.981, width=0.01)
    assert not Search(1.0, (low,)).is_done and Search(1.0, (low,)).outcome(low.measured) == "met"
    assert Search(1.0, (low, sure)).is_done and Search(1.0, (low, sure)).best is sure
    assert Search(1.0, (a_round(0.972, width=0.05),)).is_done, "a next round would be as unsure"
    assert Search(1.0, (a_round(0.986, width=0.014),)).is_done, "at the aim"


def test_the_largest_within_the_budget_is_kept_or_the_smallest_above_it() -> None:
    found = [Search(1.0, tuple(map(a_round, values))).best for values in ([0.9, 0.96, 1.001], [1.3, 1.1, 1.2], [])]
    assert [one and one.measured.value for one in found] == [0.96, 1.1, None]


def test_the_first_limit_is_the_aim(prices: Prices) -> None:
    assert Search(2.0).factors(prices) == Terms(1, 1, 1, 1) and Search(2.0).limit == 2 * AIM


def test_where_less_came_true_than_was_promised_more_is_asked_for() -> None:
    on_course = Search(1.0, (a_round(1.2), a_round(1.0, predicted=0.985, shape=1)))
    halfway = Search(1.0, (a_round(1.2), a_round(1.05, predicted=0.985, shape=1)))
    assert on_course.limit == pytest.approx(1.0 + (AIM - 1.0) / ((1.2 - 1.0) / (1.2 - 0.985)))
    assert halfway.limit < AIM - 0.02


def test_a_limit_stays_above_zero_where_the_budget_is_far_below_what_is_measured() -> None:
    hopeless = Search(1.0, (a_round(9.0), a_round(6.0, predicted=1.0, shape=1)))
    assert 0 < hopeless.limit < 0.1


def test_a_plan_contains_another_of_the_same_blocks_that_is_nowhere_larger() -> None:
    large, thin, short = SHAPES[0], SHAPES[2], SHAPES[3]
    assert large.contains(thin) and large.contains(large) and not thin.contains(large)
    assert not large.contains(short) and not SHAPES[1].contains(large), "other blocks; fewer neurons"
    assert thin.by_number == dict(enumerate(thin.blocks))


def test_where_blocks_save_nearly_an_attention_corrections_leave_a_table_that_holds() -> None:
    attention = {(h, w): 0.7 * h * w / 64 for h in (1, 2) for w in (16, 32)}
    narrow = rows(1.0, attention, {16: 0.5, 64: 2.0}, block=-0.15, embed=32)
    table = CostTable.model_validate({**TABLE, "costs": [*TABLE["costs"], *narrow]})
    prices, shape = table.in_quantity("ms"), SHAPES[1]
    seen = exactly(0.6 * shape.terms(prices).total)
    factors = Search(1.0, (Round("a", AIM, shape, AIM, seen),)).factors(prices)
    corrected = table.corrected(**vars(factors)).in_quantity("ms")
    assert corrected.saved == pytest.approx(0.9) and factors.block < correct([(shape.terms(prices), seen)]).block
    assert shape.terms(prices).times(factors).total == pytest.approx(shape.terms(corrected).total)


def test_what_other_budgets_taught_is_known_from_the_start(prices: Prices) -> None:
    slow = Round("x", 1.0, SHAPES[0], 7.0, exactly(1.2 * SHAPES[0].terms(prices).total))
    factors = Search(2.0, earlier=(slow,)).factors(prices)
    assert SHAPES[0].terms(prices).times(factors).total == pytest.approx(slow.measured.value, rel=0.02)
