"""The rounds in which a budget is met: what measurements say of the table, what to allocate next, and when to stop.

A table's prediction of a plan is a sum of four terms, p = f + a + m + b: what every model takes, its attentions, its
FFNs, and its blocks beyond their sum. Measurements y of plans correct it by one factor per term, p' = w . (f, a, m, b):
Bayesian linear regression with a normal prior of mean 1 and the measurements' own noise, in closed form. With few
measurements the factors stay near 1 but for what they must explain, and a plan near the last one is predicted as that
was measured.

Figures are the less the better: milliseconds of one inference, or millijoules of one image.
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

MOST = 5  # rounds that are measured
WINDOW = 0.97  # of the budget: as near as a model is to come
AIM = 0.985  # of the budget: where the next plan is to land, in the middle of the window
# Standard deviations of the factors before anything is measured.
PRIOR = {"fixed": 0.3, "attention": 0.25, "ffn": 0.25, "block": 0.3}
OF_THE_WHOLE = 0.03  # what every model takes is found as a difference, whose error is a share of the whole
MOVE = 0.2  # of these deviations, how far the factors of the next plan may be from those of the last
LEAST_NOISE = 0.01  # of a measurement: what four factors cannot express differs from plan to plan
LEAST_FACTOR = 0.2  # a factor stays above 0, however little a term was measured to take
LEAST_LIMIT = 0.01  # of the aim: the extrapolated limit may be negative where a budget is out of reach
LEAST_SHARE = 0.6  # of a predicted change that is believed to come true
CONFIDENT = 1.96  # standard deviations on each side that a 95 % interval spans


@dataclass(frozen=True)
class Terms:
    """What a plan costs by a table, or a factor on each of these."""

    fixed: float
    attention: float
    ffn: float
    block: float

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))

    @property
    def total(self) -> float:
        return sum(self.values)

    def times(self, factors: Terms) -> Terms:
        return Terms(*(value * factor for value, factor in zip(self.values, factors.values, strict=True)))

    @property
    def largest(self) -> str:
        """The name of the term that costs most."""
        return max((one.name for one in fields(self)), key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class Shape:
    """The blocks of a plan, which of the base's they are, and the width of its embedding."""

    blocks: tuple[BlockDims, ...]
    kept: tuple[int, ...]
    embed: int | None = None  # None: the base's own

    @property
    def by_number(self) -> dict[int, BlockDims]:
        return dict(zip(self.kept, self.blocks, strict=True))

    @property
    def _given(self) -> tuple[float, ...]:
        """How many tokens each block is given; infinity stands for all."""
        return tuple(accumulate((d.tokens for d in self.blocks), lambda before, now: now or before, initial=inf))

    def contains(self, other: Shape) -> bool:
        """Whether these are blocks of the same numbers, none smaller or with fewer tokens, in no narrower embedding."""
        wide = self.embed is None or (other.embed is not None and self.embed >= other.embed)
        return (
            wide
            and self.kept == other.kept
            and all(map(ge, self._given, other._given))
            and all(
                size >= least
                for own, less in zip(self.blocks, other.blocks, strict=True)
                for size, least in zip(own.sizes.values(), less.sizes.values(), strict=True)
            )
        )

    @property
    def frame(self) -> Shape:
        """What every plan contains that has these blocks, attentions and tokens, and FFNs of any width."""
        return replace(self, blocks=tuple(replace(d, ffn=min(d.ffn, 1)) for d in self.blocks))

    def terms(self, prices: Prices) -> Terms:
        """What it costs by a table."""
        return Terms(*prices.at(self.embed or prices.embed).parts(self.blocks, self.kept))


@dataclass(frozen=True)
class Candidate:
    """What an allocation came to."""

    shape: Shape
    name: str  # by which the bench knows it


@dataclass(frozen=True)
class MeasuredFigure:
    """A model's figure, with its 95 % interval where there is one."""

    value: float
    low: float | None
    high: float | None
    repeats: int  # times that the model was measured, each beside the base

    @property
    def noise(self) -> float:
        """Its standard deviation, for the regression."""
        spread = 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * CONFIDENT)
        return max(spread, LEAST_NOISE * self.value)


@dataclass(frozen=True)
class Round:
    """One plan that was measured."""

    name: str  # by which the bench knows the plan
    limit: float  # by the table as it was corrected then
    shape: Shape
    predicted: float  # by the table as it was corrected then
    measured: MeasuredFigure
    at_least: Shape | None = None  # the plan that it grew from, if it did

    @property
    def surprise(self) -> float:
        """By what share the measurement was above the prediction."""
        return self.measured.value / self.predicted - 1


def correct(seen: Sequence[tuple[Terms, MeasuredFigure]]) -> Terms:
    """The factors of the four terms: the posterior mean, one measurement after the other (a Kalman filter)."""
    names = [one.name for one in fields(Terms)]
    if not seen:
        return Terms(*(1.0 for _ in names))
    first = seen[0][0]
    of_fixed = PRIOR["fixed"] + OF_THE_WHOLE * first.total / first.fixed if first.fixed > 0 else 0.0
    deviations = [of_fixed, *(PRIOR[name] for name in names[1:])]
    mean = [1.0] * len(names)
    covariance = [[d**2 * (i == j) for j in range(len(names))] for i, d in enumerate(deviations)]
    for terms, measured in seen:
        x = terms.values
        for i, deviation in enumerate(deviations):
            covariance[i][i] += (MOVE * deviation) ** 2
        gain = [sum(c * value for c, value in zip(row, x, strict=True)) for row in covariance]
        variance = sum(value * g for value, g in zip(x, gain, strict=True)) + measured.noise**2
        error = measured.value - sum(value * m for value, m in zip(x, mean, strict=True))
        mean = [m + g / variance * error for m, g in zip(mean, gain, strict=True)]
        covariance = [
            [c - g * h / variance for c, h in zip(row, gain, strict=True)]
            for row, g in zip(covariance, gain, strict=True)
        ]
    return Terms(*(max(m, LEAST_FACTOR) for m in mean))


@dataclass(frozen=True)
class Search:
    """A budget, and the rounds so far."""

    budget: float
    rounds: tuple[Round, ...] = ()
    earlier: tuple[Round, ...] = ()  # of other budgets, on the same base at the same target

    def with_round(self, measured: Round) -> Search:
        """Return the search after one more round."""
        return replace(self, rounds=(*self.rounds, measured))

    def holds(self, measured: MeasuredFigure) -> bool:
        return measured.value <= self.budget

    def is_met(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is in the window."""
        return WINDOW * self.budget <= measured.value <= self.budget

    def _is_surely_within(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is in the window, and not above it by its interval.

        The interval of a figure at the aim or below does not count: the aim is all that a next round would try for.
        """
        high = measured.value if measured.high is None else measured.high
        return self.is_met(measured) and (high <= self.budget or measured.value <= AIM * self.budget)

    def is_sure(self, measured: MeasuredFigure) -> bool:
        """Whether a measurement is in the window so surely that no other round is worth its time.

        Its interval does not reach below the window, either, unless it is wider than the window, as that of a next
        round would be: the model that is kept is measured again, and must be there then, too.
        """
        low = measured.value if measured.low is None else measured.low
        high = measured.value if measured.high is None else measured.high
        below = low < WINDOW * self.budget and measured.value < AIM * self.budget
        return self._is_surely_within(measured) and not (below and high - low <= (1 - WINDOW) * self.budget)

    @property
    def best(self) -> Round | None:
        """The round to keep: the largest surely in the window, else the largest within the budget or the smallest."""
        within = [one for one in self.rounds if self.holds(one.measured)]
        if not within:
            return min(self.rounds, key=lambda one: one.measured.value, default=None)
        return max(within, key=lambda one: (self._is_surely_within(one.measured), one.measured.value))

    def outcome(self, measured: MeasuredFigure) -> Outcome:
        return "met" if self.is_met(measured) else "under" if self.holds(measured) else "over"

    @property
    def is_done(self) -> bool:
        """Whether no further round is to be measured."""
        return len(self.rounds) >= MOST or (self.best is not None and self.is_sure(self.best.measured))

    def measured_before(self, shape: Shape) -> Round | None:
        return next((one for one in self.rounds if one.shape == shape), None)

    def exceeds(self, shape: Shape) -> bool:
        """Whether a plan contains one that was measured to take more than the budget, and so takes no less."""
        return any(not self.holds(one.measured) and shape.contains(one.shape) for one in self.rounds)

    @property
    def is_bracketed(self) -> bool:
        """Whether plans on both sides of the aim were measured."""
        return len({one.measured.value > AIM * self.budget for one in self.rounds}) == 2

    def factors(self, prices: Prices) -> Terms:
        """What corrects these prices by what was measured in all rounds, and for earlier budgets.

        Where attentions turn out cheaper and what a block saves larger, it saves no more than a table may say.
        """
        found = correct([(one.shape.terms(prices), one.measured) for one in (*self.earlier, *self.rounds)])
        if not prices.saved:
            return found
        return replace(found, block=min(found.block, found.attention * max(MOST_SAVED / prices.saved, 1.0)))

    @property
    def limit(self) -> float:
        """What the next plan may take by the corrected table: the aim, or more where the last plan came short.

        An allocation looks for what the table calls cheap, and so for where it errs: of the change that was predicted
        of the last plan against the one before it, often only a share comes true. The same share is expected of the
        next.
        """
        aim = AIM * self.budget
        if len(self.rounds) < 2:
            return aim
        before, last = self.rounds[-2].measured.value, self.rounds[-1]
        promised, kept = last.predicted - before, last.measured.value - before
        share = min(max(kept / promised, LEAST_SHARE), 1.0) if promised * kept > 0 else 1.0
        return max(last.measured.value + (aim - last.measured.value) / share, LEAST_LIMIT * aim)
