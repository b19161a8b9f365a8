"""The loop, on boards that are computed: what they obey is invented, and unlike what a table says."""

from __future__ import annotations

from emulated import draw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgevit.errors import BudgetError
from edgevit.meet.loop import meet
from edgevit.meet.rounds import MOST, Search


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
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
        assert 0.96 * budget <= bench.board.ms(best.shape.blocks) <= 1.01 * budget
    elif outcome == "over":
        assert bench.least_ms() > budget
    else:
        assert found.why is not None or best.measured.value >= 0.9 * budget
