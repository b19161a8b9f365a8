"""One budget over all dimensions at once: which choice to make for every module of every block.

A multiple-choice knapsack: of each module's choices exactly one is taken, unless it goes, or its whole block does; the
sum of the predicted losses is least with the sum of the costs within the limit. Dynamic programming over the cost,

    best_b(c) = min( dropped_b + best_{b-1}(c),  min_{i, j} loss_i + loss_j + best_{b-1}(c - cost_i - cost_j) ),

with attention i and FFN j taken one after the other, and beside these pairs the choices of either alone. Nothing is
asked of the choices: losses need not be convex in the cost, and costs may be MACs, parameters or milliseconds from a
table.
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

    # Exactly one of each is taken, unless the block is dropped or one of its modules goes; none: a module has to go.
    attention: Sequence[Choice]
    ffn: Sequence[Choice]
    dropped: float | None  # predicted loss of leaving the whole block out (cost 0); None where that is not allowed
    # The ways to make either module where the other goes, what is lost by that included; none where it may not go.
    attention_alone: Sequence[Choice] = ()
    ffn_alone: Sequence[Choice] = ()


# Per block attention and FFN, of which either may be gone; None: dropped.
Allocation = list[tuple[Choice | None, Choice | None] | None]


@dataclass(frozen=True)
class _Front:
    """The choices of one module that are worth a thought: as the cost rises, the loss falls."""

    choices: list[Choice]
    costs: list[int]  # in grains, of which every cost and the limit are a whole number

    def best_within(self, cost: int) -> int:
        """Index of the best choice of at most this cost."""
        return bisect_right(self.costs, cost) - 1


Sites = tuple[bool, bool]  # whether attention and FFN are there


@dataclass(frozen=True)
class _Block:
    """The ways to make a block: which sites are there, with a front for each."""

    ways: dict[Sites, tuple[_Front, ...]]
    dropped: float | None

    @property
    def least(self) -> int:
        """Cost of the cheapest way to make or leave the block."""
        return 0 if self.dropped is not None else min(sum(f.costs[0] for f in way) for way in self.ways.values())

    def offsets(self, way: tuple[_Front, ...]) -> tuple[int, ...]:
        """The least cost of each front, where the block cannot be dropped: it is spent anyway, and needs no bins."""
        settled = self.dropped is None and len(self.ways) == 1
        return tuple(front.costs[0] if settled else 0 for front in way)

    @property
    def spent(self) -> int:
        """The sum of the offsets."""
        return sum(self.offsets(next(iter(self.ways.values()))))


def _block(menu: BlockMenu, grains: int) -> _Block:
    ways: dict[Sites, tuple[_Front, ...]] = {}
    if menu.attention and menu.ffn:
        ways[True, True] = _front(menu.attention, grains), _front(menu.ffn, grains)
    if menu.attention_alone:
        ways[True, False] = (_front(menu.attention_alone, grains),)
    if menu.ffn_alone:
        ways[False, True] = (_front(menu.ffn_alone, grains),)
    assert ways and (menu.dropped is None or menu.dropped >= 0)
    return _Block(ways, menu.dropped)


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
        for way in block.ways.values():
            for front, offset in zip(way, block.offsets(way), strict=True):
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


Taken = tuple[Sites, list[int]]  # which sites of a block are there, and the index in the front of each


def _solve(blocks: Sequence[_Block], bin_size: int, room_bins: int) -> list[Taken | None] | None:
    """What is taken of each block, None where it is dropped; no list where rounded up not even the cheapest fit."""
    best: NDArray[np.float64] = np.zeros(room_bins + 1)  # least loss of the blocks so far within so many bins
    tables = []
    for block in blocks:
        without = best
        ways: list[tuple[Sites, list[tuple[_Steps, NDArray[Any]]]]] = []
        best = np.full(room_bins + 1, np.inf)
        which: NDArray[Any] = np.zeros(room_bins + 1, np.int8)
        for sites, way in block.ways.items():
            reached, taken = without, []
            for front, offset in zip(way, block.offsets(way), strict=True):
                steps = _steps(front, offset, bin_size, room_bins)
                reached, took = steps.take(reached, [front.choices[i].loss for i in steps.indices])
                taken.append((steps, took))
            better = reached < best
            best, which = np.where(better, reached, best), np.where(better, len(ways), which)
            ways.append((sites, taken))
        if block.dropped is not None:
            drop = without + block.dropped <= best
            best, which = np.where(drop, without + block.dropped, best), np.where(drop, -1, which)
        tables.append((ways, which))
    if not np.isfinite(best[-1]):
        return None
    found: list[Taken | None] = []
    at = room_bins
    for ways, which in reversed(tables):
        if which[at] < 0:
            found.append(None)
            continue
        sites, taken = ways[which[at]]
        indices = []
        for steps, took in reversed(taken):
            j = int(took[at])
            at -= steps.bins[j]
            indices.append(steps.indices[j])
        found.append((sites, indices[::-1]))
    return found[::-1]


def _cheapest(blocks: Sequence[_Block]) -> list[Taken | None]:
    """The cheapest way to make or leave every block; of equally cheap ones that which loses least."""
    found: list[Taken | None] = []
    for block in blocks:
        ways = [
            (sum(f.costs[0] for f in way), sum(f.choices[0].loss for f in way), (sites, [0] * len(way)))
            for sites, way in block.ways.items()
        ]
        cost, loss, taken = min(ways, key=lambda way: way[:2])
        leave = block.dropped is not None and (0, block.dropped) <= (cost, loss)
        found.append(None if leave else taken)
    return found


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
    costs = {c.cost for m in menus for choices in (m.attention, m.ffn, m.attention_alone, m.ffn_alone) for c in choices}
    # Whole numbers from here on; `bins` among the factors, so that the limit is a whole number of bins.
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
    found = _solve(blocks, bin_size, room // bin_size) or _cheapest(blocks)
    fronts = [f for b, taken in zip(blocks, found, strict=True) if taken is not None for f in b.ways[taken[0]]]
    indices = [i for taken in found if taken is not None for i in taken[1]]
    spent = sum(f.costs[i] for f, i in zip(fronts, indices, strict=True))
    _spend(fronts, indices, whole - spent)
    made = iter([f.choices[i] for f, i in zip(fronts, indices, strict=True)])

    def chosen(sites: Sites) -> tuple[Choice | None, Choice | None]:
        attention, ffn = (next(made) if there else None for there in sites)
        return attention, ffn

    return [None if taken is None else chosen(taken[0]) for taken in found]
