"""Grow or shrink a measured plan a little, where the next allocation would jump over the window below the budget.

An allocation with another limit may give a very different plan: one block less, the others wider. Its measurement is
then no nearer to the limit than the table is accurate, and two such plans can lie on either side of the window in every
round. A plan that contains the largest plan within the budget takes what that plan was measured to take, and only the
difference comes from the table. So the best plan that contains it is allocated, with a limit between the two. If a plan
just above the budget is nearer, the best plan with its blocks is allocated, with a limit a little below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgevit.latency.rounds import AIM, Round, Search, Shape, Terms

if TYPE_CHECKING:
    from edgevit.derivation.allocate.prices import Prices

# Shares of the budget to grow to: the middle of the window; if no step is as small, as near as noise allows.
AIMS = (AIM, 0.998)
_LEAST_SHARE = 0.2  # smallest share of a predicted growth that is expected to be measured
NEAR = 1.05  # a plan up to this share of the budget shrinks; one further above has other blocks to lose


@dataclass(frozen=True)
class Growth:
    """A plan to grow or shrink from, and a line that predicts plans which contain it."""

    at_least: Shape  # what the next plan contains: the plan that grows, or the frame of the plan that shrinks
    factors: Terms  # factors by which the table's terms are corrected
    budget: float
    start: float  # measured figure of the plan, in ms or mJ
    cost: float  # cost of the plan by the corrected table, in ms or mJ
    slope: float  # share of a change of that cost that shows in a measurement

    def predicted(self, cost: float) -> float:
        """Return what a plan with this cost is expected to take."""
        return self.start + self.slope * (cost - self.cost)

    def limits(self) -> Iterator[float]:
        """Yield a limit by the corrected table for each of the AIMS; if the plan grows, only limits above its cost."""
        for aim in AIMS:
            limit = self.cost + (aim * self.budget - self.start) / self.slope
            if self.start > self.budget or limit > self.cost:
                yield limit


def growth(search: Search, prices: Prices) -> Growth | None:
    """Grow from the best round; None if no measured plan is within the budget.

    If a plan that contains it was measured above the budget, the slope is that between the two. Otherwise cost and
    measurement are proportional, or less if the plan itself grew by less than was predicted.
    """
    best = search.best
    if best is None or not search.is_within(best.measured):
        return None
    over = [r for r in search.rounds if not search.is_within(r.measured) and r.shape.contains(best.shape)]
    above = min(over, key=lambda r: r.measured.value, default=None)
    return _from(search, prices, best, best.shape, above)


def shrinking(search: Search, prices: Prices) -> Growth | None:
    """Shrink from the nearest round above the budget; None unless it is near, and nearer than the best within it.

    A plan that contains that best one does not shrink: growing finds what lies between them. Nor does a plan whose
    shrinking has failed, because other measurements must correct the table first.
    """
    best = search.best
    over = [r for r in search.rounds if not search.is_within(r.measured)]
    above = min(over, key=lambda r: r.measured.value, default=None)
    if best is None or above is None or above.measured.value > NEAR * search.budget:
        return None
    if any(r.at_least == above.shape.frame for r in over if r is not above):
        return None
    if search.is_within(best.measured):
        aim = AIM * search.budget
        if above.measured.value - aim >= aim - best.measured.value or above.shape.contains(best.shape):
            return None
    return _from(search, prices, above, above.shape.frame, None)


def _from(search: Search, prices: Prices, start: Round, at_least: Shape, above: Round | None) -> Growth:
    """Fit the line through a round and, if given, one above the budget."""
    factors = search.factors(prices)

    def cost(measured: Round) -> float:
        return measured.shape.terms(prices).times(factors).total

    value, start_cost = start.measured.value, cost(start)
    slope = value / start_cost * (_came_true(search, start) or 1.0)
    if above is not None and cost(above) > start_cost and above.measured.value > value:
        slope = (above.measured.value - value) / (cost(above) - start_cost)
    return Growth(at_least, factors, search.budget, value, start_cost, slope)


def _came_true(search: Search, grown: Round) -> float | None:
    """Return the share of a predicted growth that was measured, if it came short; None if the plan did not grow."""
    before = None if grown.at_least is None else search.measured_before(grown.at_least)
    if before is None or grown.predicted <= before.measured.value:
        return None
    share = (grown.measured.value - before.measured.value) / (grown.predicted - before.measured.value)
    return min(max(share, _LEAST_SHARE), 1.0)
