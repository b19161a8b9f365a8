"""Allocate by the table, measure what comes of it, correct the table, allocate again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.latency.boards import Searches
from edgevit.latency.growth import AIMS, Growth, growth, shrinking
from edgevit.latency.mixing import LimitError, fitting
from edgevit.latency.rounds import AIM, Candidate, MeasuredFigure, Search, Shape, Terms

if TYPE_CHECKING:
    from edgevit.derivation.allocate.cost_table import CostTable
    from edgevit.derivation.allocate.prices import Prices

# A table may be as wrong as this: where it says that every plan costs more, relative to the budget, none is measured.
OUT_OF_REACH = 1.25
SURPRISING = 0.02  # a prediction that is as wrong as this calls for a finer table
ROUNDING = 1e-9  # of sums of milliseconds

Limits = tuple[float, ...]  # one for each board


class PlanBench(Protocol):
    """Where plans are made and measured, on one board or on two."""

    @property
    def quantity(self) -> Quantity: ...

    def tables(self) -> tuple[CostTable, ...]:
        """The cost table of each board, as far as it is measured."""

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        """The best plan that costs no more than `limit` by a table, and contains `at_least`, if that is given.

        Raises:
            BudgetError: there is none; its `least` is the cost of the cheapest plan.
        """

    def measure(self, candidate: Candidate) -> tuple[MeasuredFigure, ...]:
        """Measure a plan on each board."""

    def refine(self, shape: Shape, board: int) -> None:
        """Measure blocks of these sizes on a board, and add them to its table."""


@dataclass(frozen=True)
class SearchOutcome:
    """How a search ended."""

    searches: Searches
    why: str | None  # it ended; None: the budget is met, or the rounds are used up

    @property
    def search(self) -> Search:
        """The search to judge by: of each round the figure of the board that is nearest its budget."""
        return self.searches.tightest


def search_plans(
    searches: Searches, bench: PlanBench, tell: Callable[[Searches], None] = lambda _: None
) -> SearchOutcome:
    """Go on with a search until the budget is met, nothing more is gained, or the rounds are used up.

    `tell` gets the searches after each round that was measured.

    Raises:
        LimitError: the cheapest plan costs far more than the budget; `least` is its cost by the table.
    """
    while not searches.tightest.is_done:
        _refine(searches, bench)
        step = _Step(searches, bench)
        made = step.shrunk() or (searches.tightest.is_bracketed and step.grown()) or step.allocated()
        if isinstance(made, str):
            return SearchOutcome(searches, made)
        measured = bench.measure(made.candidate)
        searches = searches.with_round(made.candidate, made.limits, made.predicted, measured, made.at_least)
        tell(searches)
    return SearchOutcome(searches, None)


def _refine(searches: Searches, bench: PlanBench) -> None:
    """Where the last prediction was wrong for the board that decides, measure its sizes, or its embedding's width."""
    board = searches.decides
    rounds = searches.each[board].rounds
    if not rounds or abs(rounds[-1].surprise) <= SURPRISING:
        return
    table, shape = bench.tables()[board], rounds[-1].shape
    known = {None, table.base.embed, *(narrower.embed for narrower in table.narrower)}
    if not searches.tightest.is_bracketed or shape.embed not in known:
        bench.refine(shape, board)


@dataclass(frozen=True)
class _Next:
    """The plan of the next round."""

    candidate: Candidate
    limits: Limits  # by the corrected tables
    predicted: tuple[float, ...]
    at_least: Shape | None = None  # that it grew from


class _Step:
    """One round before it is measured: the tables as they are now."""

    def __init__(self, searches: Searches, bench: PlanBench) -> None:
        self.searches, self.bench, self.tables = searches, bench, bench.tables()
        self.prices: list[Prices] = [table.in_quantity(bench.quantity) for table in self.tables]

    def allocated(self) -> _Next | str:
        """The best plan at the limits by the corrected tables; or why there is none that was not measured."""
        searches, judged = self.searches, self.searches.tightest
        factors = [search.factors(of) for search, of in zip(searches.each, self.prices, strict=True)]
        limits, relaxed, aims = searches.limits, 0, iter(AIMS)
        while True:
            try:
                candidate = self._fitting(factors, limits)
            except LimitError as error:
                if relaxed > len(limits):
                    raise
                limits, relaxed = self._relaxed(error, limits), relaxed + 1
                continue
            if (known := judged.measured_before(candidate.shape)) is None:
                return _Next(candidate, limits, self._costs(candidate.shape, factors))
            if relaxed:
                return "no plan costs less than one that is measured"
            # The plan's own measurement counts here and not the factors, which are fitted to all measurements.
            number, costs = judged.rounds.index(known), self._costs(known.shape, factors)
            own = [(search.budget, search.rounds[number].measured.value) for search in searches.each]
            if (aim := next(aims, None)) is None:
                break
            limits = tuple(cost * aim * budget / seen for cost, (budget, seen) in zip(costs, own, strict=True))
        return self.grown() or "no other plan lies as near to the budget: its widths go in larger steps"

    def _relaxed(self, error: LimitError, limits: Limits) -> Limits:
        """The limits within which there is a plan, where there is none within these.

        Raises:
            LimitError: the same, as it is out of reach.
        """
        if error.least is None:
            raise error
        each = self.searches.each
        if error.board is None:
            if not each[0].rounds and error.least * AIM > OUT_OF_REACH:
                raise error
            return tuple(limit * error.least * (1 + ROUNDING) for limit in limits)
        if not each[0].rounds and error.least > OUT_OF_REACH * each[error.board].budget:
            raise error
        least = error.least * (1 + ROUNDING)
        return tuple(least if i == error.board else limit for i, limit in enumerate(limits))

    def grown(self) -> _Next | None:
        """What the largest plan within the budget grows to; None: there is none, or no step of it fits in.

        Its cost by the corrected table may itself be above what is left: with fewer tokens factors of the terms are
        near what they do to a table, and not that.
        """
        try:
            return self._near(growth(self.searches, self.prices))
        except LimitError:
            return None

    def shrunk(self) -> _Next | None:
        """What a plan just above the budget shrinks to; None: there is none, or it cannot shrink so far."""
        try:
            return self._near(shrinking(self.searches, self.prices))
        except LimitError:
            return None

    def _near(self, start: Growth | None) -> _Next | None:
        """The first plan for which the start asks that was not measured, and contains none that takes too much."""
        judged = self.searches.tightest
        if start is None:
            return None
        for limits in start.limits():
            limits = tuple(limit * (1 + ROUNDING) for limit in limits)
            candidate = self._fitting(start.factors, limits, start.at_least)
            if judged.measured_before(candidate.shape) is None and not judged.exceeds(candidate.shape):
                costs = self._costs(candidate.shape, start.factors)
                return _Next(candidate, limits, start.predicted(costs), start.at_least)
        return None

    def _fitting(self, factors: Sequence[Terms], limits: Limits, at_least: Shape | None = None) -> Candidate:
        tables = [table.corrected(**vars(one)) for table, one in zip(self.tables, factors, strict=True)]
        return fitting(partial(self.bench.allocate, at_least=at_least), tables, limits, self.bench.quantity)

    def _costs(self, shape: Shape, factors: Sequence[Terms]) -> tuple[float, ...]:
        """What a plan costs on each board by its corrected table."""
        return tuple(shape.terms(of).times(one).total for of, one in zip(self.prices, factors, strict=True))
