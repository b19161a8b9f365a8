"""Allocate by the table, measure what comes of it, correct the table, allocate again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edgevit.errors import BudgetError
from edgevit.meet.rounds import AIM, Measured, Round, Search, Shape, Terms

if TYPE_CHECKING:
    from edgevit.derive.allocate.prices import Prices

# A table may be as wrong as this: where it says that every plan costs more, relative to the budget, none is measured.
OUT_OF_REACH = 1.25
SURPRISING = 0.02  # a prediction that is as wrong as this calls for a finer table
ROUNDING = 1e-9  # of sums of milliseconds


@dataclass(frozen=True)
class Candidate:
    """What an allocation came to."""

    shape: Shape
    name: str  # by which the bench knows it


class Bench(Protocol):
    """Where plans are made and measured."""

    def prices(self) -> Prices:
        """The table as it was measured so far."""

    def allocate(self, factors: Terms, limit: float) -> Candidate:
        """The best plan of at most this cost by the table, corrected by the factors.

        Raises:
            BudgetError: there is none; `least` is what the cheapest costs by it.
        """

    def measure(self, candidate: Candidate) -> Measured: ...

    def refine(self, shape: Shape) -> None:
        """Measure for the table what these blocks take."""


@dataclass(frozen=True)
class Found:
    """How a search ended."""

    search: Search
    why: str | None  # it ended; None: the budget is met, or the rounds are used up


def meet(search: Search, bench: Bench, tell: Callable[[Search], None] = lambda _: None) -> Found:
    """Go on with a search until the budget is met, nothing more is gained, or the rounds are used up.

    `tell` gets the search after each round that was measured.

    Raises:
        BudgetError: the cheapest plan costs far more than the budget; `least` is its cost by the table.
    """
    why: str | None = None
    while not search.is_done:
        if search.rounds and abs(search.rounds[-1].surprise) > SURPRISING and not search.is_bracketed:
            bench.refine(search.rounds[-1].shape)
        prices = bench.prices()
        factors, limit = search.next(prices)
        limit, candidate, why = _next(search, bench, prices, factors, limit)
        if candidate is None:
            break
        predicted = candidate.shape.terms(prices).times(factors).total
        done = Round(candidate.name, limit, candidate.shape, predicted, bench.measure(candidate))
        search = replace(search, rounds=(*search.rounds, done))
        tell(search)
    return Found(search, why)


def _next(
    search: Search, bench: Bench, prices: Prices, factors: Terms, limit: float
) -> tuple[float, Candidate | None, str | None]:
    """The limit and the plan of the next round; or no plan, and why there is none."""
    for _ in range(2):
        try:
            candidate = bench.allocate(factors, limit)
        except BudgetError as error:
            if error.least is None or (not search.rounds and error.least > OUT_OF_REACH * search.budget):
                raise
            limit = error.least * (1 + ROUNDING)
            candidate = bench.allocate(factors, limit)
            if search.measured_before(candidate.shape):
                return limit, None, "no plan costs less than one that is measured"
            return limit, candidate, None
        if (known := search.measured_before(candidate.shape)) is None:
            return limit, candidate, None
        # By its own measurement alone, as the factors are of all.
        limit = known.shape.terms(prices).times(factors).total * AIM * search.budget / known.measured.value
    return limit, None, "no other plan lies as near to the budget: its widths go in larger steps"
