"""Search for a plan that keeps a measured budget: allocate by the table, measure, correct the table, allocate again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.errors import BudgetError
from edgevit.latency.growth import AIMS, Growth, growth, shrinking
from edgevit.latency.rounds import Candidate, MeasuredFigure, Round, Search, Shape, Terms

if TYPE_CHECKING:
    from edgevit.derivation.allocate.cost_table import CostTable

# The table may be wrong by this factor: if the cheapest plan costs more, relative to the budget, nothing is measured.
OUT_OF_REACH = 1.25
SURPRISING = 0.02  # relative error of a prediction above which more sizes are measured for the table
_ROUNDING = 1e-9  # relative error of sums of milliseconds
_RELAXATIONS = 2  # times that a limit below the cheapest plan is raised to its cost


class PlanBench(Protocol):
    """Makes plans and measures them."""

    @property
    def quantity(self) -> Quantity: ...

    @property
    def table(self) -> CostTable:
        """The cost table, with all sizes that have been measured."""

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        """Return the best plan that costs at most `limit` by a table and contains `at_least`, if that is given.

        Raises:
            BudgetError: there is none; `least` is the cost of the cheapest plan.
        """

    def measure(self, candidate: Candidate) -> MeasuredFigure:
        """Measure a plan."""

    def refine(self, shape: Shape) -> None:
        """Measure blocks of these sizes, and add them to the table."""


@dataclass(frozen=True)
class SearchOutcome:
    """The rounds of a search, and the reason why it ended."""

    search: Search
    reason: str | None  # why it ended early; None: the budget is met, or the rounds are used up


def search_plans(search: Search, bench: PlanBench, tell: Callable[[Search], None] = lambda _: None) -> SearchOutcome:
    """Continue a search until the budget is met, no further plan helps, or the rounds are used up.

    `tell` gets the search after each measured round.

    Raises:
        BudgetError: the cheapest plan costs far more than the budget; `least` is its cost by the table.
    """
    while not search.is_done:
        _refine(search, bench)
        step = _Step(search, bench)
        plan = step.shrunk() or (search.is_bracketed and step.grown()) or step.allocated()
        if isinstance(plan, str):
            return SearchOutcome(search, plan)
        search = search.with_round(plan.measured(bench.measure(plan.candidate)))
        tell(search)
    return SearchOutcome(search, None)


def _refine(search: Search, bench: PlanBench) -> None:
    """If the last prediction was wrong, measure the sizes of its plan, or the width of its embedding."""
    if not search.rounds or abs(search.rounds[-1].surprise) <= SURPRISING:
        return
    shape = search.rounds[-1].shape
    if not search.is_bracketed or shape.embed not in (None, *bench.table.in_quantity(bench.quantity).embeds):
        bench.refine(shape)


@dataclass(frozen=True)
class _Next:
    """The plan of the next round."""

    candidate: Candidate
    limit: float  # limit of the allocation, by the corrected table
    predicted: float
    at_least: Shape | None = None  # the plan that it grew from; None: it did not grow from one

    def measured(self, figure: MeasuredFigure) -> Round:
        candidate = self.candidate
        return Round(candidate.name, self.limit, candidate.shape, self.predicted, figure, self.at_least)


class _Step:
    """One round before it is measured, with the table as it is now."""

    def __init__(self, search: Search, bench: PlanBench) -> None:
        self.search, self.bench, self.table = search, bench, bench.table
        self.prices = self.table.in_quantity(bench.quantity)

    def allocated(self) -> _Next | str:
        """Return the best plan within the limit by the corrected table; or the reason why no new plan exists."""
        search, factors = self.search, self.search.factors(self.prices)
        limit, relaxed, aims = search.limit, 0, iter(AIMS)
        while True:
            try:
                candidate = self._allocate(factors, limit)
            except BudgetError as error:
                if relaxed == _RELAXATIONS:
                    raise
                limit, relaxed = self._relaxed(error), relaxed + 1
                continue
            if (before := search.measured_before(candidate.shape)) is None:
                return _Next(candidate, limit, self._cost(candidate.shape, factors))
            if relaxed:
                return "no plan costs less than one that is measured"
            if (aim := next(aims, None)) is None:
                break
            # The plan's own measurement counts here, not the factors, which are fitted to all measurements.
            limit = self._cost(before.shape, factors) * aim * search.budget / before.measured.value
        return self.grown() or "no other plan lies as near to the budget: its widths go in larger steps"

    def _relaxed(self, error: BudgetError) -> float:
        """Return the limit that the cheapest plan keeps.

        Raises:
            BudgetError: the same, if that plan is out of reach of the budget.
        """
        if error.least is None or (not self.search.rounds and error.least > OUT_OF_REACH * self.search.budget):
            raise error
        return error.least * (1 + _ROUNDING)

    def grown(self) -> _Next | None:
        """Grow the largest plan within the budget; None if there is none, or no step of it fits in.

        Its cost by the corrected table may itself exceed the limit, because with fewer tokens a factor per term does
        not reproduce exactly what the correction does to the table.
        """
        try:
            return self._near(growth(self.search, self.prices))
        except BudgetError:
            return None

    def shrunk(self) -> _Next | None:
        """Shrink a plan just above the budget; None if there is none, or it cannot shrink as far."""
        try:
            return self._near(shrinking(self.search, self.prices))
        except BudgetError:
            return None

    def _near(self, start: Growth | None) -> _Next | None:
        """Return the first plan near the start that was not measured and contains no plan that exceeds the budget."""
        if start is None:
            return None
        for limit in start.limits():
            limit *= 1 + _ROUNDING
            candidate = self._allocate(start.factors, limit, start.at_least)
            if self.search.measured_before(candidate.shape) is None and not self.search.exceeds(candidate.shape):
                predicted = start.predicted(self._cost(candidate.shape, start.factors))
                return _Next(candidate, limit, predicted, start.at_least)
        return None

    def _allocate(self, factors: Terms, limit: float, at_least: Shape | None = None) -> Candidate:
        return self.bench.allocate(self.table.corrected(**vars(factors)), limit, at_least)

    def _cost(self, shape: Shape, factors: Terms) -> float:
        """Return the cost of a plan by the corrected table."""
        return shape.terms(self.prices).times(factors).total
