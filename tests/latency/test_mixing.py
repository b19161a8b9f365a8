"""The best plan within the limits of two tables, and whose limit it is where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from some_rounds import TABLE

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.errors import BudgetError
from edgevit.latency.mixing import CLOSE, LimitError, fitting
from edgevit.latency.rounds import Candidate, Shape
from edgevit.records.model import BlockDims

COUNT = 4
# The same number of blocks, of any heads and neurons: what they are worth is the sum of both.
PLANS = [Shape((BlockDims(h, 16, 16, n),) * COUNT, tuple(range(COUNT))) for h in (1, 2) for n in range(16, 65, 4)]


def table(attention: float, ffn: float) -> CostTable:
    content: dict[str, Any] = {**TABLE, "blocks": [dict(b) for b in TABLE["blocks"]]}  # type: ignore[attr-defined]
    (block,) = content["blocks"]
    for site, rate in (("attention", attention), ("ffn", ffn)):
        block[site] = [{**cost, "ms": cost["ms"] * rate} for cost in block[site]]
    return CostTable.model_validate(content)


def worth(shape: Shape) -> float:
    return shape.blocks[0].heads / 2 + shape.blocks[0].ffn / 64


class Allocations:
    """The plan that is worth most, of those within a limit."""

    def __init__(self, plans: Sequence[Shape] = PLANS) -> None:
        self.plans, self.count = plans, 0

    def __call__(self, prices: CostTable, limit: float) -> Candidate:
        self.count += 1
        of = prices.in_quantity("ms")
        costs: Mapping[Shape, float] = {shape: shape.terms(of).total for shape in self.plans}
        within = [shape for shape, cost in costs.items() if cost <= limit]
        if not within:
            raise BudgetError("too small", least=min(costs.values()), made_of="attention")
        return Candidate(max(within, key=worth), "")


def test_with_one_table_its_limit_is_all() -> None:
    allocate, one = Allocations(), table(1, 1)
    found = fitting(allocate, [one], [5.0], "ms")
    assert allocate.count == 1 and found == allocate(one, 5.0)
    with pytest.raises(LimitError) as refused:
        fitting(allocate, [one], [0.5], "ms")
    assert (refused.value.board, refused.value.made_of) == (0, "attention")


def test_where_the_slower_board_decides_one_allocation_is_enough() -> None:
    for tables in ([table(1, 1), table(3, 3)], [table(3, 3), table(1, 1)]):
        allocate = Allocations()
        found = fitting(allocate, tables, [20.0, 20.0], "ms")
        assert allocate.count == 1
        assert found == allocate(table(3, 3), 20.0)


@pytest.mark.parametrize("limits", [(6.0, 6.0), (7.0, 9.0), (60.0, 6.5), (5.0, 12.0)])
def test_nothing_within_both_limits_is_worth_more(limits: tuple[float, float]) -> None:
    tables = [table(2, 0.5), table(0.5, 2)]
    found = fitting(Allocations(), tables, limits, "ms").shape
    priced = [one.in_quantity("ms") for one in tables]

    def fits(shape: Shape) -> bool:
        return all(shape.terms(of).total <= limit * (1 + CLOSE) for of, limit in zip(priced, limits, strict=True))

    assert fits(found)
    assert worth(found) == max(worth(shape) for shape in PLANS if fits(shape))


def test_whose_limit_cannot_be_kept_is_said_with_the_least_there() -> None:
    tables, priced = [table(1, 1), table(3, 3)], table(3, 3).in_quantity("ms")
    with pytest.raises(LimitError) as refused:
        fitting(Allocations(), tables, [20.0, 3.0], "ms")
    assert refused.value.board == 1
    assert refused.value.least == pytest.approx(min(shape.terms(priced).total for shape in PLANS))
    with pytest.raises(LimitError) as refused:
        fitting(Allocations(), tables, [1.0, 300.0], "ms")
    assert refused.value.board == 0


def test_limits_that_can_be_kept_one_at_a_time_alone_are_told_so() -> None:
    """Two heads and few neurons, or the other way round: the first board has 7 ms for 9.1 of the one."""
    some = [Shape((BlockDims(h, 16, 16, n),) * COUNT, tuple(range(COUNT))) for h, n in ((2, 16), (1, 64))]
    with pytest.raises(LimitError) as refused:
        fitting(Allocations(some), [table(4, 0.25), table(0.5, 4)], [7.0, 10.0], "ms")
    assert refused.value.board is None
    assert refused.value.least == pytest.approx((9.1 / 7 + 9.6 / 10) / 2), "of the limits, at equal weights"
