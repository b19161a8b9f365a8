"""A measured plan grows or shrinks a little, where the next allocation would jump over the window below the budget.

An allocation with another limit may be another plan altogether: a block less, the others wider. What it takes is then
no nearer to the limit than the table is right, and two such plans can lie on either side of the window for as long as
the rounds last. A plan that contains the largest one within the budget takes what that was measured to take, and only
what it has more is by the table. So of all plans that contain it the best is asked for, at a limit between the two.
Where a plan just above the budget is nearer, the best plan with its blocks is asked for, at a limit a little below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgevit.latency.boards import Searches
from edgevit.latency.rounds import AIM, Search, Shape, Terms

if TYPE_CHECKING:
    from edgevit.derivation.allocate.prices import Prices

# Shares of the budget to grow to: the middle of the window, and where no step is as small, as near as noise allows.
AIMS = (AIM, 0.998)
LEAST_SHARE = 0.2  # of the change by which a plan is to grow that is believed to come true
NEAR = 1.05  # of the budget: a plan above it shrinks, one further above has other blocks to lose


@dataclass(frozen=True)
class Line:
    """What plans that contain the start are expected to take on one board."""

    budget: float
    start: float  # what the start was measured to take
    cost: float  # of the start, by the corrected table
    slope: float  # share of a change in that cost that shows in what is measured

    def predicted(self, cost: float) -> float:
        """What a plan takes that costs so much by the corrected table."""
        return self.start + self.slope * (cost - self.cost)

    def limit(self, aim: float) -> float:
        """What a plan may cost by the corrected table to take this share of the budget."""
        return self.cost + (aim * self.budget - self.start) / self.slope


@dataclass(frozen=True)
class Growth:
    """A plan to grow or shrink from, and what each board is expected to take of plans that contain it."""

    at_least: Shape  # what the next plan is to contain: the plan it grows from, or the frame of the one that shrinks
    factors: tuple[Terms, ...]  # of each board's table
    lines: tuple[Line, ...]

    def limits(self) -> Iterator[tuple[float, ...]]:
        """For each of the AIMS, what plans may cost on each board; for a plan that grows, more than it costs itself."""
        for aim in AIMS:
            limits = tuple(line.limit(aim) for line in self.lines)
            over = any(line.start > line.budget for line in self.lines)
            if over or all(limit > line.cost for limit, line in zip(limits, self.lines, strict=True)):
                yield limits

    def predicted(self, costs: Sequence[float]) -> tuple[float, ...]:
        """What a plan with these costs is expected to take on each board."""
        return tuple(line.predicted(cost) for line, cost in zip(self.lines, costs, strict=True))


def growth(searches: Searches, prices: Sequence[Prices]) -> Growth | None:
    """Where to grow from; None: nothing that was measured is within the budget.

    Where a plan that contains the start was measured above the budget, a change is worth what it was worth there;
    else, in proportion to what the start takes, and less where the start itself grew by less than was predicted.
    """
    best, judged = searches.best, searches.tightest
    if best is None or not judged.holds(judged.rounds[best].measured):
        return None
    start = judged.rounds[best].shape
    beyond = [i for i, r in enumerate(judged.rounds) if not judged.holds(r.measured) and r.shape.contains(start)]
    over = min(beyond, key=lambda i: judged.rounds[i].measured.value, default=None)
    factors = tuple(search.factors(of) for search, of in zip(searches.each, prices, strict=True))
    lines = (_line(*one, best, over) for one in zip(searches.each, prices, factors, strict=True))
    return Growth(start, factors, tuple(lines))


def shrinking(searches: Searches, prices: Sequence[Prices]) -> Growth | None:
    """Where to shrink from; None: no plan above the budget is near it, and nearer than the best within it.

    A plan that contains that best one is not asked: what lies between them is found by growing. Nor is one twice which
    took no less when it was to shrink, as other measurements have to correct the table first.
    """
    best, judged = searches.best, searches.tightest
    over = {i: one for i, one in enumerate(judged.rounds) if not judged.holds(one.measured)}
    nearest = min(over, key=lambda i: over[i].measured.value, default=None)
    if best is None or nearest is None or over[nearest].measured.value > NEAR * judged.budget:
        return None
    within, above = judged.rounds[best], over.pop(nearest)
    if any(one.at_least == above.shape.frame for one in over.values()):
        return None
    if judged.holds(within.measured):
        apart = above.measured.value - AIM * judged.budget, AIM * judged.budget - within.measured.value
        if apart[0] >= apart[1] or above.shape.contains(within.shape):
            return None
    factors = tuple(search.factors(of) for search, of in zip(searches.each, prices, strict=True))
    lines = (_line(*one, nearest, None) for one in zip(searches.each, prices, factors, strict=True))
    return Growth(above.shape.frame, factors, tuple(lines))


def _line(search: Search, prices: Prices, factors: Terms, best: int, over: int | None) -> Line:
    """One board's line, by the round `best` to grow from and the round `over`, if any, that was above the budget."""

    def at(number: int) -> tuple[float, float]:
        one = search.rounds[number]
        return one.shape.terms(prices).times(factors).total, one.measured.value

    cost, start = at(best)
    if over is not None:
        more, taken = at(over)
        if more > cost and taken > start:
            return Line(search.budget, start, cost, (taken - start) / (more - cost))
    return Line(search.budget, start, cost, start / cost * (_came_true(search, best) or 1.0))


def _came_true(search: Search, grown: int) -> float | None:
    """Of the change by which a plan grew, the share that was measured, if it came short; None: it did not grow."""
    one = search.rounds[grown]
    before = None if one.at_least is None else search.measured_before(one.at_least)
    if before is None or one.predicted <= before.measured.value:
        return None
    share = (one.measured.value - before.measured.value) / (one.predicted - before.measured.value)
    return min(max(share, LEAST_SHARE), 1.0)
