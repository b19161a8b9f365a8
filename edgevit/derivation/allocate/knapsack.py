"""Spend one budget on all dimensions at once: select a choice for every module of every block.

This is a multiple-choice knapsack: exactly one choice of each module is selected, unless the module or its whole block
is removed. The sum of predicted losses is minimised with the sum of costs within the limit. Dynamic programming over
the cost,

    best_b(c) = min( dropped_b + best_{b-1}(c),  min_{i, j} loss_i + loss_j + best_{b-1}(c - cost_i - cost_j) ),

adds attention i and then FFN j, and also considers choices of either alone. Losses need not be convex in the cost, and
costs may be MACs, parameters, or milliseconds from a table.
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
    """One candidate size of a module."""

    cost: float  # cost in MACs, parameters, milliseconds or millijoules, at least 0
    loss: float  # predicted increase of the loss, at least 0
    value: Any  # the size, which the allocation does not read


@dataclass(frozen=True)
class BlockMenu:
    """All candidates of one block."""

    # One of each is selected, unless the block or the module is removed; empty: the module must be removed.
    attention: Sequence[Choice]
    ffn: Sequence[Choice]
    dropped: float | None  # predicted loss of removing the whole block (cost 0); None: not allowed
    # Candidates of a module if the other one is removed, with that loss included; empty: it may not be removed.
    attention_alone: Sequence[Choice] = ()
    ffn_alone: Sequence[Choice] = ()


# Per block the attention and the FFN, None if removed; None for a removed block.
_Allocation = list[tuple[Choice | None, Choice | None] | None]


@dataclass(frozen=True)
class _Front:
    """The Pareto-optimal choices of one module, with rising cost and falling loss."""

    choices: list[Choice]
    costs: list[int]  # cost of each choice in grains, the unit in which all costs and the limit are whole numbers

    def best_within(self, cost: int) -> int:
        """Find the index of the best choice of at most this cost."""
        return bisect_right(self.costs, cost) - 1


_Sites = tuple[bool, bool]  # whether attention and FFN exist


@dataclass(frozen=True)
class _Block:
    """The candidates of a block: combinations of sites, with a front for each site."""

    ways: dict[_Sites, tuple[_Front, ...]]
    dropped: float | None

    @property
    def least(self) -> int:
        """The cost of the cheapest candidate, or 0 if the block may be removed."""
        return 0 if self.dropped is not None else min(sum(f.costs[0] for f in way) for way in self.ways.values())

    def offsets(self, way: tuple[_Front, ...]) -> tuple[int, ...]:
        """Return the least cost of each front, which is always spent and needs no bins; 0 if the sites may vary."""
        settled = self.dropped is None and len(self.ways) == 1
        return tuple(front.costs[0] if settled else 0 for front in way)

    @property
    def spent(self) -> int:
        """The sum of the offsets."""
        return sum(self.offsets(next(iter(self.ways.values()))))


def _block(menu: BlockMenu, grains: int) -> _Block:
    ways: dict[_Sites, tuple[_Front, ...]] = {}
    if menu.attention and menu.ffn:
        ways[True, True] = _front(menu.attention, grains), _front(menu.ffn, grains)
    if menu.attention_alone:
        ways[True, False] = (_front(menu.attention_alone, grains),)
    if menu.ffn_alone:
        ways[False, True] = (_front(menu.ffn_alone, grains),)
    assert ways and (menu.dropped is None or menu.dropped >= 0)
    return _Block(ways, menu.dropped)


def _front(choices: Sequence[Choice], grains: int) -> _Front:
    """Remove every choice that another one beats in cost and loss; convert costs to grains, exactly."""
    assert choices and all(c.cost >= 0 and c.loss >= 0 and isfinite(c.cost) and isfinite(c.loss) for c in choices)
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.cost, c.loss)):
        if not front or choice.loss < front[-1].loss:
            front.append(choice)
    return _Front(front, [int(_exact(c.cost) * grains) for c in front])


def _exact(cost: float) -> Fraction:
    """Convert a number as it is written: 0.1 is a tenth, so that costs from a table have a common divisor."""
    return Fraction(str(cost))


def _bin_size(blocks: Sequence[_Block], room: int, bins: int) -> int:
    """Choose the grains per bin: the common divisor of all costs if it gives at most `bins` bins, else room / bins."""
    divisor = 0
    for block in blocks:
        for way in block.ways.values():
            for front, offset in zip(way, block.offsets(way), strict=True):
                divisor = gcd(divisor, *(cost - offset for cost in front.costs))
    return divisor if divisor and room // divisor <= bins else max(room // bins, 1)


@dataclass(frozen=True)
class _Steps:
    """A module's front in bins."""

    bins: list[int]  # number of cost bins that each choice takes, rising
    indices: list[int]  # index in the front of each choice

    def take(self, best: NDArray[np.float64], losses: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Do one min-plus step: for each number of bins the least loss with one more choice, and the index of it."""
        size = len(best)
        least = np.full(size, np.inf)
        selected = np.zeros(size, np.int16 if len(self.bins) < 2**15 else np.int32)
        candidates, better = np.empty(size), np.empty(size, bool)
        for j, (start, loss) in enumerate(zip(self.bins, losses, strict=True)):
            candidate, is_better, current = candidates[start:], better[start:], least[start:]
            np.add(best[: size - start], loss, out=candidate)
            np.less(candidate, current, out=is_better)
            np.copyto(current, candidate, where=is_better)
            np.copyto(selected[start:], j, where=is_better)
        return least, selected


def _steps(front: _Front, offset: int, bin_size: int, room_bins: int) -> _Steps:
    """Round costs up to bins; of the choices in one bin, only the last one, of the least loss, can be optimal."""
    last = {-(-(cost - offset) // bin_size): i for i, cost in enumerate(front.costs)}
    within = {b: i for b, i in last.items() if b <= room_bins}
    return _Steps(list(within), list(within.values()))


_Selection = tuple[_Sites, list[int]]  # the sites of a block, and the index in the front of each


def _solve(blocks: Sequence[_Block], bin_size: int, room_bins: int) -> list[_Selection | None] | None:
    """Select for each block, None if it is removed; None if even the cheapest choices, rounded up, do not fit."""
    best: NDArray[np.float64] = np.zeros(room_bins + 1)  # least loss of the blocks so far within so many bins
    tables = []
    for block in blocks:
        without = best
        ways: list[tuple[_Sites, list[tuple[_Steps, NDArray[Any]]]]] = []
        best = np.full(room_bins + 1, np.inf)
        taken_way: NDArray[Any] = np.zeros(room_bins + 1, np.int8)
        for sites, way in block.ways.items():
            reached, steps_of_way = without, []
            for front, offset in zip(way, block.offsets(way), strict=True):
                steps = _steps(front, offset, bin_size, room_bins)
                reached, selected = steps.take(reached, [front.choices[i].loss for i in steps.indices])
                steps_of_way.append((steps, selected))
            better = reached < best
            best, taken_way = np.where(better, reached, best), np.where(better, len(ways), taken_way)
            ways.append((sites, steps_of_way))
        if block.dropped is not None:
            drop = without + block.dropped <= best
            best, taken_way = np.where(drop, without + block.dropped, best), np.where(drop, -1, taken_way)
        tables.append((ways, taken_way))
    if not np.isfinite(best[-1]):
        return None
    selections: list[_Selection | None] = []
    bins_left = room_bins
    for ways, taken_way in reversed(tables):
        if taken_way[bins_left] < 0:
            selections.append(None)
            continue
        sites, steps_of_way = ways[taken_way[bins_left]]
        indices = []
        for steps, selected in reversed(steps_of_way):
            j = int(selected[bins_left])
            bins_left -= steps.bins[j]
            indices.append(steps.indices[j])
        selections.append((sites, indices[::-1]))
    return selections[::-1]


def _cheapest(blocks: Sequence[_Block]) -> list[_Selection | None]:
    """Select the cheapest candidate of every block, or its removal; of equal costs, the one of the least loss."""
    selections: list[_Selection | None] = []
    for block in blocks:
        ways = [
            (sum(f.costs[0] for f in way), sum(f.choices[0].loss for f in way), (sites, [0] * len(way)))
            for sites, way in block.ways.items()
        ]
        cost, loss, selection = min(ways, key=lambda way: way[:2])
        is_removed = block.dropped is not None and (0, block.dropped) <= (cost, loss)
        selections.append(None if is_removed else selection)
    return selections


def _spend(fronts: Sequence[_Front], indices: list[int], slack: int) -> None:
    """Improve single choices in place while any fits, by the greatest gain in loss first."""
    while True:
        gain, k = 0.0, -1
        for n, (front, i) in enumerate(zip(fronts, indices, strict=True)):
            j = front.best_within(front.costs[i] + slack)
            if (better := front.choices[i].loss - front.choices[j].loss) > gain:
                gain, k = better, n
        if k < 0:
            return
        j = fronts[k].best_within(fronts[k].costs[indices[k]] + slack)
        slack -= fronts[k].costs[j] - fronts[k].costs[indices[k]]
        indices[k] = j


def allocate(menus: Sequence[BlockMenu], limit: float, *, bins: int = 20_000) -> _Allocation:
    """Choose sizes for every block with the least total loss, at a total cost of at most `limit`.

    The result is exact if the costs beyond the cheapest choices have a common divisor that gives at most `bins` bins.
    Else these costs are rounded up to 1 / `bins` of the rest of the limit. The limit is still met exactly, and the loss
    is at most the optimum for a limit that is one bin per module lower. What rounding leaves is spent on single
    choices, by the greatest gain first. Costs are added as decimal numbers.

    Raises:
        BudgetError: even the cheapest choices cost more; the message has their cost.
    """
    assert bins > 0
    if not menus:
        return []
    costs = {c.cost for m in menus for choices in (m.attention, m.ffn, m.attention_alone, m.ffn_alone) for c in choices}
    # Whole numbers from here on; `bins` is a factor, so that the limit is a whole number of bins.
    grains = bins * lcm(*(_exact(cost).denominator for cost in {limit, *costs}))
    blocks = [_block(menu, grains) for menu in menus]
    least, whole = sum(b.least for b in blocks), int(_exact(limit) * grains)
    if whole < least:
        raise BudgetError(
            f"a budget that leaves {limit:.6g} for the blocks cannot be met: their cheapest choices cost "
            f"{least / grains:.6g}; raise the budget, or try another --shape"
        )
    room = whole - sum(b.spent for b in blocks)
    bin_size = _bin_size(blocks, room, bins)
    selections = _solve(blocks, bin_size, room // bin_size) or _cheapest(blocks)
    fronts = [f for b, s in zip(blocks, selections, strict=True) if s is not None for f in b.ways[s[0]]]
    indices = [i for selection in selections if selection is not None for i in selection[1]]
    spent = sum(f.costs[i] for f, i in zip(fronts, indices, strict=True))
    _spend(fronts, indices, whole - spent)
    choices = iter([f.choices[i] for f, i in zip(fronts, indices, strict=True)])

    def chosen(sites: _Sites) -> tuple[Choice | None, Choice | None]:
        attention, ffn = (next(choices) if exists else None for exists in sites)
        return attention, ffn

    return [None if selection is None else chosen(selection[0]) for selection in selections]
