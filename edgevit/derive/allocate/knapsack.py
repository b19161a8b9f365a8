"""One budget over all dimensions at once: which choice to make for every module of every block.

A multiple-choice knapsack: of each module's choices exactly one is taken, unless its block is dropped; the sum of the
predicted losses is least with the sum of the costs within the limit. Dynamic programming over the cost,

    best_b(c) = min( dropped_b + best_{b-1}(c),  min_{i, j} loss_i + loss_j + best_{b-1}(c - cost_i - cost_j) ),

with attention i and FFN j taken one after the other. Nothing is asked of the choices: losses need not be convex in the
cost, and costs may be MACs, parameters or milliseconds from a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, isfinite, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgevit.errors import BudgetError


@dataclass(frozen=True)
class Choice:
    """One way to make one module of one block."""

    cost: float  # MACs, parameters or milliseconds
    loss: float  # predicted increase of the loss, at least 0
    value: Any  # what it stands for: opaque to the allocation


@dataclass(frozen=True)
class BlockMenu:
    """All ways to make one block."""

    attention: Sequence[Choice]  # exactly one is taken, unless the block is dropped
    ffn: Sequence[Choice]
    dropped: float | None  # predicted loss of leaving the whole block out (cost 0); None where that is not allowed


Allocation = list[tuple[Choice, Choice] | None]  # per block attention and FFN; None: dropped


@dataclass(frozen=True)
class _Front:
    """The choices of one module that are worth a thought: as the cost rises, the loss falls."""

    choices: list[Choice]
    costs: list[int]  # in grains, of which every cost and the limit are a whole number

    def best_within(self, cost: int) -> int:
        """Index of the best choice of at most this cost."""
        return bisect_right(self.costs, cost) - 1


@dataclass(frozen=True)
class _Block:
    attention: _Front
    ffn: _Front
    dropped: float | None

    @property
    def least(self) -> int:
        """Cost of the cheapest way to make or leave the block."""
        return 0 if self.dropped is not None else self.attention.costs[0] + self.ffn.costs[0]

    def offsets(self) -> tuple[int, int]:
        """What of each module's costs is spent in any case, and so needs no bins."""
        return (0, 0) if self.dropped is not None else (self.attention.costs[0], self.ffn.costs[0])


def _front(choices: Sequence[Choice], grains: int) -> _Front:
    """Drop every choice that another beats in cost and in loss; costs in units of 1 / grains, exactly."""
    assert choices and all(c.cost >= 0 and c.loss >= 0 and isfinite(c.cost) and isfinite(c.loss) for c in choices)
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.cost, c.loss)):
        if not kept or choice.loss < kept[-1].loss:
            kept.append(choice)
    return _Front(kept, [int(_exact(c.cost) * grains) for c in kept])


def _exact(cost: float) -> Fraction:
    """The number as it is written: 0.1 is a tenth, so costs from a table have a common divisor."""
    return Fraction(str(cost))


def _bin_size(blocks: Sequence[_Block], room: int, bins: int) -> int:
    """Grains per bin: the common divisor of all costs if that gives few enough bins, else as fine as `bins` allows."""
    divisor = 0
    for block in blocks:
        for front, offset in zip((block.attention, block.ffn), block.offsets(), strict=True):
            divisor = gcd(divisor, *(cost - offset for cost in front.costs))
    return divisor if divisor and room // divisor <= bins else max(room // bins, 1)


@dataclass(frozen=True)
class _Steps:
    """A module's front in bins."""

    bins: list[int]  # rising
    indices: list[int]  # into the front

    def take(self, best: NDArray[np.float64], losses: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """One min-plus step: for each number of bins the least loss with one choice more, and which one that is."""
        size = len(best)
        least = np.full(size, np.inf)
        taken = np.zeros(size, np.int16 if len(self.bins) < 2**15 else np.int32)
        candidates, better = np.empty(size), np.empty(size, bool)
        for j, (start, loss) in enumerate(zip(self.bins, losses, strict=True)):
            candidate, is_better, there = candidates[start:], better[start:], least[start:]
            np.add(best[: size - start], loss, out=candidate)
            np.less(candidate, there, out=is_better)
            np.copyto(there, candidate, where=is_better)
            np.copyto(taken[start:], j, where=is_better)
        return least, taken


def _steps(front: _Front, offset: int, bin_size: int, room_bins: int) -> _Steps:
    """Round costs up to bins; of the choices in one bin only the last, which loses least, can be the best."""
    last = {-(-(cost - offset) // bin_size): i for i, cost in enumerate(front.costs)}
    within = {b: i for b, i in last.items() if b <= room_bins}
    return _Steps(list(within), list(within.values()))


def _solve(blocks: Sequence[_Block], bin_size: int, room_bins: int) -> list[tuple[int, int] | None]:
    """Return per block the indices of attention and FFN in their fronts, or None."""
    best: NDArray[np.float64] = np.zeros(room_bins + 1)  # least loss of the blocks so far within so many bins
    tables = []
    for block in blocks:
        pair = []
        without = best
        for front, offset in zip((block.attention, block.ffn), block.offsets(), strict=True):
            steps = _steps(front, offset, bin_size, room_bins)
            best, taken = steps.take(best, [front.choices[i].loss for i in steps.indices])
            pair.append((steps, taken))
        drop: NDArray[np.bool_] = np.zeros(len(best), bool)
        if block.dropped is not None:
            drop = without + block.dropped <= best
            best = np.where(drop, without + block.dropped, best)
        tables.append((pair, drop))
    found: list[tuple[int, int] | None] = []
    at = room_bins
    for ((attention, took_attention), (ffn, took_ffn)), drop in reversed(tables):
        if drop[at]:
            found.append(None)
            continue
        j = int(took_ffn[at])
        at -= ffn.bins[j]
        i = int(took_attention[at])
        at -= attention.bins[i]
        found.append((attention.indices[i], ffn.indices[j]))
    return found[::-1]


def _spend(fronts: Sequence[_Front], taken: list[int], slack: int) -> None:
    """Improve single choices in place while any fits, the greatest gain in loss first."""
    while True:
        gain, k = 0.0, -1
        for n, (front, i) in enumerate(zip(fronts, taken, strict=True)):
            j = front.best_within(front.costs[i] + slack)
            if (better := front.choices[i].loss - front.choices[j].loss) > gain:
                gain, k = better, n
        if k < 0:
            return
        j = fronts[k].best_within(fronts[k].costs[taken[k]] + slack)
        slack -= fronts[k].costs[j] - fronts[k].costs[taken[k]]
        taken[k] = j


def allocate(menus: Sequence[BlockMenu], limit: float, *, bins: int = 20_000) -> Allocation:
    """Choose for every block what loses least in all, at a total cost of at most `limit`.

    Exact where the costs, beyond the cheapest choices that no allocation can do without, have a common divisor that
    gives at most `bins` bins. Otherwise costs are rounded up to bins of 1 / `bins` of what the limit leaves beyond
    those, so that the limit holds exactly; the loss is then no greater than the least for a limit lower by one bin per
    module. What rounding left over goes to single choices, best gain first. Costs are added as decimal numbers.

    Raises:
        BudgetError: even the cheapest choices cost more; the message has their cost.
    """
    assert bins > 0
    if not menus:
        return []
    costs = {c.cost for menu in menus for choices in (menu.attention, menu.ffn) for c in choices}
    # Whole numbers from here on; `bins` among the factors, so that the limit is a whole number of bins.
    grains = bins * lcm(*(_exact(cost).denominator for cost in {limit, *costs}))
    blocks = [_Block(_front(m.attention, grains), _front(m.ffn, grains), m.dropped) for m in menus]
    assert all(b.dropped is None or b.dropped >= 0 for b in blocks)
    least = sum(b.least for b in blocks)
    room = int(_exact(limit) * grains) - least
    if room < 0:
        raise BudgetError(
            f"a budget that leaves {limit:.6g} for the blocks cannot be met: their cheapest choices cost "
            f"{least / grains:.6g}; raise the budget, or try another --shape"
        )
    bin_size = _bin_size(blocks, room, bins)
    found = _solve(blocks, bin_size, room // bin_size)
    fronts = [f for b, pair in zip(blocks, found, strict=True) if pair is not None for f in (b.attention, b.ffn)]
    taken = [i for pair in found if pair is not None for i in pair]
    spent = sum(f.costs[i] for f, i in zip(fronts, taken, strict=True))
    _spend(fronts, taken, room + least - spent)
    made = iter([f.choices[i] for f, i in zip(fronts, taken, strict=True)])
    return [None if pair is None else (next(made), next(made)) for pair in found]
