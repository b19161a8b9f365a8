"""The best plan within the limits of two boards, by allocations that know one limit alone.

What a plan costs by a table is a sum over its sites. So for a weight w from 0 to 1

    (1 - w) * cost_a / limit_a  +  w * cost_b / limit_b  <=  1

is the limit of one table: that of both boards, mixed. Every plan within both limits is within this one. A plan that is
the best within this one, and within both limits, is therefore the best of all that are within both. At w = 0 only the
first board counts and at w = 1 only the second; between them w is bisected, towards the board whose limit is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.mixed_table import mixed
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.errors import BudgetError
from edgevit.latency.rounds import Candidate

HALVINGS = 4  # of the range of weights: each is an allocation
CLOSE = 0.004  # of a limit: a plan up to this much above it is accepted, as limits are 1.5 % under the budget
TRIES = 2  # allocations at lower limits, where no weight gives a plan that fits

Allocate = Callable[[CostTable, float], Candidate]  # the best plan of at most this cost by the table


class LimitError(BudgetError):
    """No plan is within a limit; `board` is whose, None: each is within reach, and both together are not.

    `least` is what the cheapest plan costs by that board's table, or its share of the limits, of which 1 is all.
    """

    def __init__(self, error: BudgetError, board: int | None, least: float | None) -> None:
        super().__init__(str(error), least=least, made_of=error.made_of if board is not None else "")
        self.board = board


def fitting(allocate: Allocate, tables: Sequence[CostTable], limits: Sequence[float], quantity: Quantity) -> Candidate:
    """The best plan whose cost by each of one or two tables is within its limit.

    Two tables are mixed in the units of the first, so that the limit of every allocation is the first board's.

    Raises:
        LimitError: there is none.
    """
    if len(tables) == 1:
        try:
            return allocate(tables[0], limits[0])
        except BudgetError as error:
            raise LimitError(error, 0, error.least) from error
    return _Pair(allocate, tables, limits, quantity).best()


class _Pair:
    """Two boards."""

    def __init__(
        self, allocate: Allocate, tables: Sequence[CostTable], limits: Sequence[float], quantity: Quantity
    ) -> None:
        self.allocate, self.tables, self.limits = allocate, tables, limits
        self.prices = [table.in_quantity(quantity) for table in tables]

    def best(self) -> Candidate:
        cut = [prices.base / limit for prices, limit in zip(self.prices, self.limits, strict=True)]
        ends = (0.0, 1.0) if cut[0] >= cut[1] else (1.0, 0.0)  # the board where more must go comes first
        low, high, tried = 0.0, 1.0, dict[float, Candidate]()
        for step in range(len(ends) + HALVINGS):
            weight = ends[step] if step < len(ends) else (low + high) / 2
            tried[weight] = found = self._at(weight)
            first, second = self._shares(found)
            if max(first, second) <= 1 + CLOSE:
                return found
            if step >= len(ends):
                low, high = (weight, high) if second > first else (low, weight)
        nearest = min(tried, key=lambda weight: max(self._shares(tried[weight])))
        return self._smaller(nearest, tried[nearest])

    def _smaller(self, weight: float, found: Candidate) -> Candidate:
        """A plan within both limits although no weight has one: at a limit that is as much lower as this is above."""
        over = 1.0
        for _ in range(TRIES):
            over *= max(self._shares(found))
            try:
                found = self._at(weight, over)
            except LimitError:
                break
            if max(self._shares(found)) <= 1 + CLOSE:
                break
        return found

    def _at(self, weight: float, over: float = 1.0) -> Candidate:
        """The best plan at a weight; `over`: at so many times less than the limit."""
        rate = self.limits[0] / self.limits[1]  # units of the first board in one of the second's
        table = mixed([(self.tables[0], over * (1 - weight)), (self.tables[1], over * weight * rate)])
        try:
            return self.allocate(table, self.limits[0])
        except BudgetError as error:
            board = {0.0: 0, 1.0: 1}.get(weight)
            share = None if error.least is None else error.least / self.limits[0] / over
            raise LimitError(error, board, share and share * (1 if board is None else self.limits[board])) from error

    def _shares(self, found: Candidate) -> list[float]:
        """What a plan costs on each board, of its limit."""
        return [found.shape.terms(p).total / limit for p, limit in zip(self.prices, self.limits, strict=True)]
