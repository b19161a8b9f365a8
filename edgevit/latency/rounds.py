"""The rounds of a search: how measurements correct the table, what to allocate next, and when to stop.

A table predicts the cost of a plan as a sum of four terms, p = f + a + m + b: the parts outside the blocks, the
attentions, the FFNs, and the blocks beyond their sum. Measurements of plans correct it by one factor for each term,
p' = w . (f, a, m, b). The factors are the posterior mean of a Bayesian linear regression in closed form, with a normal
prior of mean 1 and the measurements' own noise. With few measurements they stay near 1, except as far as they must
explain the measurements, and a plan near the last one is predicted as that one was measured.

Figures are milliseconds of one inference, or millijoules of one image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from math import inf
from operator import ge
from typing import TYPE_CHECKING

from edgevit.derivation.allocate.prices import MOST_SAVED
from edgevit.records.derivation import Outcome
from edgevit.records.model import BlockDims

if TYPE_CHECKING:
    from edgevit.derivation.allocate.prices import Prices

MOST = 5  # rounds
WINDOW = 0.97  # smallest figure that meets a budget, as a share of it
AIM = 0.985  # target of the next plan as a share of the budget, in the middle of the window
# Standard deviations of the factors before any measurement.
PRIOR = {"fixed": 0.3, "attention": 0.25, "ffn": 0.25, "block": 0.3}
_FIXED_ERROR = 0.03  # error of the fixed term, measured as a difference, as a share of the whole cost
_MOVE = 0.2  # how far the factors may move from one plan to the next, as a share of these deviations
_LEAST_NOISE = 0.01  # relative, of a measurement: four factors cannot express all differences between plans
_LEAST_FACTOR = 0.2  # a factor stays above 0
# Smallest limit as a share of the aim: extrapolation may give less than 0 if a budget is out of reach.
_LEAST_LIMIT = 0.01
_LEAST_SHARE = 0.6  # smallest share of a predicted change that is expected to be measured
CONFIDENT = 1.96  # standard deviations on each side of a 95 % interval


@dataclass(frozen=True)
class Terms:
    """The four terms of a plan's cost by a table, or a factor on each."""

    fixed: float
    attention: float
    ffn: float
    block: float

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(getattr(self, term.name) for term in fields(self))

    @property
    def total(self) -> float:
        return sum(self.values)

    def times(self, factors: Terms) -> Terms:
        return Terms(*(value * factor for value, factor in zip(self.values, factors.values, strict=True)))

    @property
    def largest(self) -> str:
        """The name of the largest term."""
        return max((term.name for term in fields(self)), key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class Shape:
    """The blocks of a plan, their numbers in the base, and the width of the embedding."""

    blocks: tuple[BlockDims, ...]
    numbers: tuple[int, ...]
    embed: int | None = None  # width of the embedding; None: the base's own

    @property
    def by_number(self) -> dict[int, BlockDims]:
        return dict(zip(self.numbers, self.blocks, strict=True))

    @property
    def _tokens(self) -> tuple[float, ...]:
        """The number of tokens that each block gets; infinity stands for all."""
        return tuple(accumulate((d.tokens for d in self.blocks), lambda before, now: now or before, initial=inf))

    def contains(self, smaller: Shape) -> bool:
        """Whether these are the same blocks, none smaller or with fewer tokens, and no narrower embedding."""
        wide = self.embed is None or (smaller.embed is not None and self.embed >= smaller.embed)
        return (
            wide
            and self.numbers == smaller.numbers
            and all(map(ge, self._tokens, smaller._tokens))
            and all(
                size >= least
                for block, least_block in zip(self.blocks, smaller.blocks, strict=True)
                for size, least in zip(block.sizes.values(), least_block.sizes.values(), strict=True)
            )
        )

    @property
    def frame(self) -> Shape:
        """The plan contained in every plan with these blocks, attentions and tokens, whatever its FFNs."""
        return replace(self, blocks=tuple(replace(d, ffn=min(d.ffn, 1)) for d in self.blocks))

    def terms(self, prices: Prices) -> Terms:
        """Return the terms of its cost by a table."""
        return Terms(*prices.at(self.embed or prices.embed).parts(self.blocks))


@dataclass(frozen=True)
class Candidate:
    """A plan that was allocated."""

    shape: Shape
    name: str  # name of the plan's model in the bench


@dataclass(frozen=True)
class MeasuredFigure:
    """A model's figure, with its 95 % interval where there is one."""

    value: float
    low: float | None
    high: float | None
    repeats: int  # number of rounds of the measurement

    @property
    def noise(self) -> float:
        """The standard deviation, for the regression."""
        spread = 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * CONFIDENT)
        return max(spread, _LEAST_NOISE * self.value)


@dataclass(frozen=True)
class Round:
    """A measured plan."""

    name: str  # name of the plan's model in the bench
    limit: float  # limit of the allocation, by the table as corrected before this round
    shape: Shape
    predicted: float  # predicted cost, by the table as corrected before this round
    measured: MeasuredFigure
    at_least: Shape | None = None  # the plan that this one grew from; None: it did not grow from one

    @property
    def surprise(self) -> float:
        """The relative error of the prediction; positive: the measurement is larger."""
        return self.measured.value / self.predicted - 1


def correct(measured: Sequence[tuple[Terms, MeasuredFigure]]) -> Terms:
    """Return the factors of the four terms: the posterior mean, one measurement after the other (a Kalman filter)."""
    names = [term.name for term in fields(Terms)]
    if not measured:
        return Terms(*(1.0 for _ in names))
    first = measured[0][0]
    of_fixed = PRIOR["fixed"] + _FIXED_ERROR * first.total / first.fixed if first.fixed > 0 else 0.0
    deviations = [of_fixed, *(PRIOR[name] for name in names[1:])]
    mean = [1.0] * len(names)
    covariance = [[d**2 * (i == j) for j in range(len(names))] for i, d in enumerate(deviations)]
    for terms, figure in measured:
        x = terms.values
        for i, deviation in enumerate(deviations):
            covariance[i][i] += (_MOVE * deviation) ** 2
        gain = [sum(c * value for c, value in zip(row, x, strict=True)) for row in covariance]
        variance = sum(value * g for value, g in zip(x, gain, strict=True)) + figure.noise**2
        error = figure.value - sum(value * m for value, m in zip(x, mean, strict=True))
        mean = [m + g / variance * error for m, g in zip(mean, gain, strict=True)]
        covariance = [
            [c - g * h / variance for c, h in zip(row, gain, strict=True)]
            for row, g in zip(covariance, gain, strict=True)
        ]
    return Terms(*(max(m, _LEAST_FACTOR) for m in mean))


@dataclass(frozen=True)
class Search:
    """A budget, and the rounds so far."""

    budget: float
    rounds: tuple[Round, ...] = ()
    earlier: tuple[Round, ...] = ()  # rounds of other budgets, on the same base and target

    def with_round(self, measured: Round) -> Search:
        """Return the search after one more round."""
        return replace(self, rounds=(*self.rounds, measured))

    def is_within(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is within the budget."""
        return measured.value <= self.budget

    def is_met(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is in the window."""
        return WINDOW * self.budget <= measured.value <= self.budget

    def _is_surely_within(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is in the window, and its interval not above it.

        At the aim or below the interval does not count, because a next round would aim no lower.
        """
        high = measured.value if measured.high is None else measured.high
        return self.is_met(measured) and (high <= self.budget or measured.value <= AIM * self.budget)

    def is_sure(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is so surely in the window that another round is not worth its time.

        Its interval must not reach below the window either, unless it is wider than the window, as that of a next round
        would be: the final model is measured again, and must be in the window then, too.
        """
        low = measured.value if measured.low is None else measured.low
        high = measured.value if measured.high is None else measured.high
        below = low < WINDOW * self.budget and measured.value < AIM * self.budget
        return self._is_surely_within(measured) and not (below and high - low <= (1 - WINDOW) * self.budget)

    @property
    def best(self) -> Round | None:
        """The round to keep: the largest surely in the window, else the largest within the budget, else the least."""
        within = [r for r in self.rounds if self.is_within(r.measured)]
        if not within:
            return min(self.rounds, key=lambda r: r.measured.value, default=None)
        return max(within, key=lambda r: (self._is_surely_within(r.measured), r.measured.value))

    def outcome(self, measured: MeasuredFigure) -> Outcome:
        return "met" if self.is_met(measured) else "under" if self.is_within(measured) else "over"

    @property
    def rounds_left(self) -> int:
        return MOST - len(self.rounds)

    @property
    def is_done(self) -> bool:
        """Whether no further round is needed."""
        return self.rounds_left <= 0 or (self.best is not None and self.is_sure(self.best.measured))

    def measured_before(self, shape: Shape) -> Round | None:
        return next((r for r in self.rounds if r.shape == shape), None)

    def exceeds(self, shape: Shape) -> bool:
        """Whether a plan contains one that was measured above the budget, and so takes no less."""
        return any(not self.is_within(r.measured) and shape.contains(r.shape) for r in self.rounds)

    @property
    def is_bracketed(self) -> bool:
        """Whether plans on both sides of the aim were measured."""
        return len({r.measured.value > AIM * self.budget for r in self.rounds}) == 2

    def factors(self, prices: Prices) -> Terms:
        """Return the factors that correct a table by the measurements of all rounds and of earlier budgets.

        A block saves no more of its smallest attention than a table may list.
        """
        factors = correct([(r.shape.terms(prices), r.measured) for r in (*self.earlier, *self.rounds)])
        if not prices.saved:
            return factors
        return replace(factors, block=min(factors.block, factors.attention * max(MOST_SAVED / prices.saved, 1.0)))

    @property
    def limit(self) -> float:
        """The limit of the next plan by the corrected table: the aim, or more if the last change fell short.

        An allocation chooses what the table calls cheap, and so where the table errs. Of the change that was predicted
        from one plan to the next, often only a share is measured. The same share is expected of the next change.
        """
        aim = AIM * self.budget
        if len(self.rounds) < 2:
            return aim
        before, last = self.rounds[-2].measured.value, self.rounds[-1]
        predicted, measured = last.predicted - before, last.measured.value - before
        share = min(max(measured / predicted, _LEAST_SHARE), 1.0) if predicted * measured > 0 else 1.0
        return max(last.measured.value + (aim - last.measured.value) / share, _LEAST_LIMIT * aim)
