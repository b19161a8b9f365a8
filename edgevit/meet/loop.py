"""Allocate by the table, measure what comes of it, correct the table, allocate again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edgevit.errors import BudgetError
from edgevit.meet.growth import growth
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

    def allocate(self, factors: Terms, limit: float, at_least: Shape | None = None) -> Candidate:
        """The best plan of at most this cost by the table, corrected by the factors; `at_least`: that contains this.

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
    while not search.is_done:
        if search.rounds and _is_to_be_refined(search, bench.prices()):
            bench.refine(search.rounds[-1].shape)
        prices = bench.prices()
        made = (search.is_bracketed and _grown(search, bench, prices)) or _allocated(search, bench, prices)
        if isinstance(made, str):
            return Found(search, made)
        candidate, limit, predicted, at_least = made.candidate, made.limit, made.predicted, made.at_least
        done = Round(candidate.name, limit, candidate.shape, predicted, bench.measure(candidate), at_least)
        search = replace(search, rounds=(*search.rounds, done))
        tell(search)
    return Found(search, None)


def _is_to_be_refined(search: Search, prices: Prices) -> bool:
    """Whether the last prediction was so wrong that its sizes are to be measured, or its embedding's width."""
    last = search.rounds[-1]
    known = {None, prices.embed, *(narrower.embed for narrower in prices.narrower)}
    return abs(last.surprise) > SURPRISING and (not search.is_bracketed or last.shape.embed not in known)


@dataclass(frozen=True)
class _Next:
    """The plan of the next round."""

    candidate: Candidate
    limit: float  # by the corrected table
    predicted: float
    at_least: Shape | None = None  # that it grew from


def _allocated(search: Search, bench: Bench, prices: Prices) -> _Next | str:
    """The best plan at the limit by the corrected table; or why there is none that was not measured."""
    factors, limit = search.next(prices)

    def found(candidate: Candidate) -> _Next:
        return _Next(candidate, limit, candidate.shape.terms(prices).times(factors).total)

    for _ in range(2):
        try:
            candidate = bench.allocate(factors, limit)
        except BudgetError as error:
            if error.least is None or (not search.rounds and error.least > OUT_OF_REACH * search.budget):
                raise
            limit = error.least * (1 + ROUNDING)
            candidate = bench.allocate(factors, limit)
            if search.measured_before(candidate.shape):
                return "no plan costs less than one that is measured"
            return found(candidate)
        if (known := search.measured_before(candidate.shape)) is None:
            return found(candidate)
        # By its own measurement alone, as the factors are of all.
        limit = known.shape.terms(prices).times(factors).total * AIM * search.budget / known.measured.value
    return _grown(search, bench, prices) or "no other plan lies as near to the budget: its widths go in larger steps"


def _grown(search: Search, bench: Bench, prices: Prices) -> _Next | None:
    """What the largest plan within the budget grows to; None: there is none, or no step of it fits in."""
    growing = growth(search, prices)
    if growing is None:
        return None
    start = growing.start.shape
    for limit in growing.limits(search.budget, prices):
        candidate = bench.allocate(growing.factors, limit * (1 + ROUNDING), start)
        if search.measured_before(candidate.shape) is None:
            cost = candidate.shape.terms(prices).times(growing.factors).total
            return _Next(candidate, limit * (1 + ROUNDING), growing.predicted(cost, prices), start)
    return None
