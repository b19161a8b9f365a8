"""The loop, on boards that are computed: what they obey is invented, and unlike what a table says."""

from __future__ import annotations

from emulated import draw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgevit.errors import BudgetError
from edgevit.meet.loop import meet
from edgevit.meet.rounds import MOST, WINDOW, Search


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 199), share=st.sampled_from([0.3, 0.5, 0.7]))
def test_a_budget_is_met_in_five_rounds_or_said_to_be_out_of_reach(seed: int, share: float) -> None:
    bench = draw(seed)
    budget = share * bench.board.ms(bench.base)
    try:
        found = meet(Search(budget), bench)
    except BudgetError as error:
        assert error.least is not None and error.least > budget and bench.least_ms() > budget
        return
    search = found.search
    best = search.best
    assert best is not None and len(search.rounds) <= MOST
    outcome = search.outcome(best.measured)
    if outcome == "met":
        assert 0.96 * budget <= bench.board.narrowed(best.shape.embed).ms(best.shape.blocks) <= 1.01 * budget
    elif outcome == "over":
        assert bench.least_ms() > budget
    else:
        # Nothing but the embedding is narrower than the base's, and a step of it is larger than the window.
        whole = all(dims == bench.base[0] for dims in best.shape.blocks)
        assert found.why is not None and (whole or not bench.holds_some(WINDOW * budget, budget))


def test_where_the_next_allocation_jumps_over_the_window_the_plan_within_the_budget_grows() -> None:
    bench = draw(51, narrower=False)  # five thin blocks there take 1.02 of this budget, and four wide ones 0.88
    budget = 0.3 * bench.board.ms(bench.base)
    search = meet(Search(budget), bench).search
    assert search.best is not None and search.outcome(search.best.measured) == "met"
    start = search.best.at_least
    assert start is not None and search.best.shape.contains(start) and search.measured_before(start) is not None
    assert {one.shape.kept for one in search.rounds} != {start.kept}


def test_where_no_step_is_as_small_as_what_is_left_the_search_ends() -> None:
    bench = draw(
        54, narrower=False
    )  # launches are nearly all that takes time there: two whole blocks take 0.88 of it, three 1.2
    budget = 0.3 * bench.board.ms(bench.base)
    found = meet(Search(budget), bench)
    assert found.why is not None and len(found.search.rounds) == 1 and not bench.holds_some(WINDOW * budget, budget)
