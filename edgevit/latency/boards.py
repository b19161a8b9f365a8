"""Boards that one model is to run on: each has a search of its own, and the one that is nearest its budget decides.

Every round measures one plan on all boards. A plan keeps its budgets if each board's figure is within the board's own,
so what the rounds say of it is the largest of the figures' shares of their budgets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from edgevit.latency.rounds import AIM, Candidate, MeasuredFigure, Round, Search, Shape


@dataclass(frozen=True)
class Searches:
    """One search for each board; the rounds of all are of the same plans."""

    each: tuple[Search, ...]

    @cached_property
    def tightest(self) -> Search:
        """The search to judge by: of each round the board with the largest share of its budget, of which 1 is all."""
        if len(self.each) == 1:
            return self.each[0]
        rounds = zip(*(search.rounds for search in self.each), strict=True)
        return Search(1.0, tuple(self._tightest(of_all) for of_all in rounds))

    def _tightest(self, rounds: tuple[Round, ...]) -> Round:
        """One round in shares of the budgets: the largest that was measured, and the largest that was predicted."""
        budgets = [search.budget for search in self.each]
        measured = [_share(one.measured, budget) for one, budget in zip(rounds, budgets, strict=True)]
        predicted = max(one.predicted / budget for one, budget in zip(rounds, budgets, strict=True))
        worst = max(measured, key=lambda seen: seen.value)
        return replace(rounds[0], limit=AIM, predicted=predicted, measured=worst)

    @property
    def decides(self) -> int:
        """Which board took most of its budget in the last round; before the first, the first board."""
        shares = [search.rounds[-1].measured.value / search.budget for search in self.each if search.rounds]
        return shares.index(max(shares)) if shares else 0

    @property
    def best(self) -> int | None:
        """The number of the round to keep; None: nothing was measured."""
        best = self.tightest.best
        return None if best is None else self.tightest.rounds.index(best)

    @property
    def limits(self) -> tuple[float, ...]:
        """What the next plan may take on each board by its corrected table.

        Where the last plan was far below a board's budget, how far a change comes true there says nothing.
        """
        aims = [AIM * search.budget for search in self.each]
        aims[self.decides] = self.each[self.decides].limit
        return tuple(aims)

    def with_round(
        self,
        candidate: Candidate,
        limits: tuple[float, ...],
        predicted: tuple[float, ...],
        measured: tuple[MeasuredFigure, ...],
        at_least: Shape | None,
    ) -> Searches:
        """After one more round."""
        return Searches(
            tuple(
                replace(
                    search,
                    rounds=(*search.rounds, Round(candidate.name, limit, candidate.shape, told, seen, at_least)),
                )
                for search, limit, told, seen in zip(self.each, limits, predicted, measured, strict=True)
            )
        )


def _share(seen: MeasuredFigure, budget: float) -> MeasuredFigure:
    low, high = (None if end is None else end / budget for end in (seen.low, seen.high))
    return MeasuredFigure(seen.value / budget, low, high, seen.repeats)
