"""The plan within the budget grows, where the next allocation would jump over the window below the budget.

An allocation with another limit may be another plan altogether: a block less, the others wider. What it takes is then
no nearer to the limit than the table is right, and two such plans can lie on either side of the window for as long as
the rounds last. A plan that contains the largest one within the budget takes what that was measured to take, and only
what it has more is by the table. So of all plans that contain it the best is asked for, at a limit between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgevit.meet.rounds import AIM, Round, Search, Terms

if TYPE_CHECKING:
    from edgevit.derive.allocate.prices import Prices

# Shares of the budget to grow to: the middle of the window, and where no step is as small, as near as noise allows.
AIMS = (AIM, 0.998)


@dataclass(frozen=True)
class Growth:
    """From which plan one grows, and what the table says where it is wrong about that plan alone."""

    start: Round
    factors: Terms  # of the table
    slope: float  # of a change by the table so corrected, what comes true

    def predicted(self, cost: float, prices: Prices) -> float:
        """What a plan is expected to take that contains the start, and costs so much by the corrected table."""
        return self.start.measured.value + self.slope * (cost - self._cost(prices))

    def limits(self, budget: float, prices: Prices) -> Iterator[float]:
        """What plans may cost by the corrected table to be measured at each of the AIMS."""
        for aim in AIMS:
            more = (aim * budget - self.start.measured.value) / self.slope
            if more > 0:
                yield self._cost(prices) + more

    def _cost(self, prices: Prices) -> float:
        return self.start.shape.terms(prices).times(self.factors).total


def growth(search: Search, prices: Prices) -> Growth | None:
    """Where to grow from; None: nothing that was measured is within the budget.

    Where a plan that contains the start was measured above the budget, a change is worth what it was worth there;
    else, in proportion to what the start takes.
    """
    start = search.best
    if start is None or not search.holds(start.measured):
        return None
    factors = search.factors(prices, search.rounds)

    def cost(one: Round) -> float:
        return one.shape.terms(prices).times(factors).total

    beyond = [one for one in search.rounds if not search.holds(one.measured) and one.shape.contains(start.shape)]
    over = min(beyond, key=lambda one: one.measured.value, default=None)
    if over is None or cost(over) <= cost(start):
        return Growth(start, factors, start.measured.value / cost(start))
    return Growth(start, factors, (over.measured.value - start.measured.value) / (cost(over) - cost(start)))
