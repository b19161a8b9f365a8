"""Which heads go, and how many tokens go on after each block: by ratios, by the loss, or by MACs.

Tokens that have left do not come back. So a *ladder* says for each block on which rung it stands, of the numbers of
tokens that there may be, and no block stands higher than the one before it. What a ladder loses is the sum over the
tokens of their score after the block where they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from torch import Tensor

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.methods.heart.scores import HessianScores
from edgevit.errors import BudgetError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry

Ratios = Literal["sensitivity", "uniform"]


@dataclass(frozen=True)
class PruningLevels:
    """For each block the rung of how many tokens it passes on, and how many heads go, the least felt first."""

    rungs: tuple[int, ...]
    heads_gone: tuple[int, ...]

    def lower(self, block: int, rung: int) -> PruningLevels:
        """With a block on a lower rung, and those behind it no higher."""
        return replace(self, rungs=(*self.rungs[:block], *(max(r, rung) for r in self.rungs[block:])))

    def without_head(self, block: int) -> PruningLevels:
        gone = list(self.heads_gone)
        gone[block] += 1
        return replace(self, heads_gone=tuple(gone))


def lengths(geometry: Geometry, token_multiple: int, *, merge: bool) -> list[int]:
    """Numbers of tokens that may reach a block, all of them first; a rung of full tiles is a multiple of the tile."""
    least = geometry.tokens - geometry.patches + 1 + int(merge)
    fewer = range(geometry.tokens - 1 - int(merge), least - 1, -1)
    return [geometry.tokens, *(n for n in fewer if n % token_multiple == 0)]


def may_leave(geometry: Geometry, depth: int) -> list[bool]:
    """Whether tokens may leave behind each block; behind the last one it would save nothing."""
    return [i < depth - 1 and "tokens" not in geometry.frozen(i) for i in range(depth)]


class Candidates:
    """Everything that may go from one model, what each choice of it costs, and what it loses."""

    def __init__(
        self, dims: Sequence[BlockDims], geometry: Geometry, budget: Budget, scores: HessianScores, *,
        tokens: Tensor, token_multiple: int, least_heads: int, merge: bool,
    ) -> None:  # fmt: skip
        self.dims, self.geometry, self.budget = dims, geometry, budget
        self.lengths, self.may_leave = lengths(geometry, token_multiple, merge=merge), may_leave(geometry, len(dims))
        if budget.prices is not None:
            # One token less saves nothing that a table could tell, and ranking costs.
            listed = {geometry.tokens, *(one.tokens for one in budget.prices.fewer)}
            self.lengths = [n for n in self.lengths if n in listed]
        grown = budget.at_least or {}
        # The lowest rung that each block may pass tokens on to.
        self.lowest = [len(self.lengths) - 1] * len(dims)
        if grown:
            passed = list(accumulate((grown[i].tokens for i in sorted(grown)), _passed, initial=geometry.tokens))
            self.lowest = [self.lengths.index(n) for n in passed[1:]]
        self.token_scores: list[list[float]] = tokens.tolist()  # [L - 1, M], in the order in which they leave
        self.head_scores = [h.sort(stable=True).values.tolist() for h in scores.heads]
        self.head_order = [h.argsort(stable=True).tolist() for h in scores.heads]
        self.tokens_lost = [_running(row) for row in self.token_scores]
        self.heads_lost = [_running(row) for row in self.head_scores]
        self.most_heads = [
            max(d.heads - max(least_heads, 1, grown[i].heads if grown else 0), 0)
            if "heads" not in geometry.frozen(i)
            else 0
            for i, d in enumerate(dims)
        ]
        self._costs: dict[tuple[int, int, int], float] = {}

    @property
    def whole(self) -> PruningLevels:
        return PruningLevels((0,) * len(self.dims), (0,) * len(self.dims))

    def shaped(self, choice: PruningLevels) -> list[BlockDims]:
        """The blocks of a choice; those after which no token leaves pass on as many as they are given."""
        shaped, before = [], 0
        for d, rung, gone in zip(self.dims, choice.rungs, choice.heads_gone, strict=True):
            shaped.append(replace(d, heads=d.heads - gone, tokens=self.lengths[rung] if rung > before else 0))
            before = rung
        return shaped

    def cost(self, choice: PruningLevels) -> float:
        """What a model of this choice costs, in the budget's quantity."""
        prices, rung = self.budget.prices, 0
        total = float(self.geometry.fixed(0, self.budget.linear)) if prices is None else prices.fixed
        for i, (next_rung, gone) in enumerate(zip(choice.rungs, choice.heads_gone, strict=True)):
            key = (i, rung, gone)
            if key not in self._costs:
                self._costs[key] = self._block_cost(*key)
            total += self._costs[key]
            if prices is not None and next_rung > rung:
                total += prices.cut(self.lengths[next_rung])
            rung = next_rung
        return total

    def _block_cost(self, i: int, rung: int, heads_gone: int) -> float:
        """What a block costs that is given the tokens of a rung."""
        block, at = replace(self.dims[i], heads=self.dims[i].heads - heads_gone), self.geometry.at(self.lengths[rung])
        if (prices := self.budget.prices_at(at)) is not None:
            return prices.block(i, block)
        return at.cost([block], self.budget.linear) - at.fixed(0, self.budget.linear)

    def lost(self, choice: PruningLevels) -> float:
        """Nats that are predicted to be lost with it."""
        total, before = 0.0, 0
        for i, rung in enumerate(choice.rungs[:-1]):
            gone = self.geometry.tokens - self.lengths[rung]
            total += self.tokens_lost[i][gone] - self.tokens_lost[i][before]
            before = gone
        return total + sum(lost[gone] for lost, gone in zip(self.heads_lost, choice.heads_gone, strict=True))

    def rung(self, gone: int) -> int:
        """The lowest rung on which no more than so many tokens are gone."""
        return max(i for i, n in enumerate(self.lengths) if self.geometry.tokens - n <= gone)

    def ladder(self, gone: Sequence[int], heads_gone: Sequence[int]) -> PruningLevels:
        """The choice in which no more than these many tokens are gone after each block, and these heads."""
        choice = PruningLevels(self.whole.rungs, tuple(map(min, heads_gone, self.most_heads)))
        for i, count in enumerate(gone):
            if self.may_leave[i]:
                choice = choice.lower(i, min(self.rung(min(count, self.geometry.patches - 1)), self.lowest[i]))
        return choice


def _passed(given: int, tokens: int) -> int:
    """How many tokens a block passes on that is given so many, and whose sizes say so; 0: all."""
    return tokens or given


def _running(scores: Sequence[float]) -> list[float]:
    """Sums of the first 0, 1, 2, ... scores; one below zero counts as zero, as nothing is won by what a model loses."""
    total = [0.0]
    for score in scores:
        total.append(total[-1] + max(score, 0.0))
    return total


# -- by MACs -----------------------------------------------------------------------------------------------------------


def by_macs(candidates: Candidates, ratios: Ratios) -> PruningLevels:
    """The choice that meets the budget and is predicted to lose little: see `_steps`; or the best of equal ratios."""
    if ratios == "uniform":
        return _best_uniform(candidates)
    choice, budget = candidates.whole, candidates.budget
    while not budget.holds(cost := candidates.cost(choice)):
        lost = candidates.lost(choice)

        def price(other: PruningLevels, cost: float = cost, lost: float = lost) -> float:
            return max(candidates.lost(other) - lost, 0.0) / (cost - candidates.cost(other))

        smaller = [c for c in _steps(candidates, choice) if candidates.cost(c) < cost]
        if not smaller:
            return _smallest(candidates)
        choice = min(smaller, key=price)
    return choice


def _smallest(candidates: Candidates) -> PruningLevels:
    """All gone that may go, where ranking tokens takes more than any step saves, and only many together save.

    Raises:
        BudgetError: that is not within the budget either.
    """
    budget = candidates.budget
    depth, patches = len(candidates.dims), candidates.geometry.patches
    choice = candidates.ladder([patches] * (depth - 1), candidates.most_heads)
    if not budget.holds(least := candidates.cost(choice)):
        raise BudgetError(
            f"{budget.asked} leaves {budget.told(budget.limit)}, and with all tokens and heads gone that may go this "
            f"takes {budget.told(least)}; raise the budget",
            least=least,
        )
    return choice


def _steps(candidates: Candidates, choice: PruningLevels) -> Iterator[PruningLevels]:
    """All choices a step smaller: tokens leave down to the next rung after some block, or a head goes.

    By a table, to any lower rung: it may be the next that saves next to nothing.
    """
    for i, rung in enumerate(choice.rungs):
        last = candidates.lowest[i] if candidates.budget.prices is not None else min(rung + 1, candidates.lowest[i])
        for lower in range(rung + 1, last + 1) if candidates.may_leave[i] else ():
            yield choice.lower(i, lower)
    for i, gone in enumerate(choice.heads_gone):
        if gone < candidates.most_heads[i]:
            yield choice.without_head(i)


def _best_uniform(candidates: Candidates) -> PruningLevels:
    """Of all pairs of a number of tokens and a number of heads, alike in all blocks, that meet the budget."""
    found = []
    for heads in range(max(candidates.most_heads, default=0) + 1):
        for length in candidates.lengths:
            choice = _uniform(candidates, candidates.geometry.tokens - length, [heads] * len(candidates.dims))
            if candidates.budget.holds(candidates.cost(choice)):
                found.append(choice)
                break
    return min(found, key=candidates.lost)


def _uniform(candidates: Candidates, tokens_gone: int, heads_gone: Sequence[int]) -> PruningLevels:
    return candidates.ladder([tokens_gone] * (len(candidates.dims) - 1), heads_gone)


# -- by ratios ---------------------------------------------------------------------------------------------------------


def by_ratio(candidates: Candidates, ratios: Ratios, tokens: float, heads: float) -> PruningLevels:
    """Let these shares of tokens and heads go: of each block's own, or the least felt of all blocks' together."""
    if ratios == "uniform":
        return _uniform(
            candidates, int(tokens * candidates.geometry.patches), [int(heads * d.heads) for d in candidates.dims]
        )
    gone = _below(candidates.token_scores, tokens)
    return candidates.ladder(gone, _below(candidates.head_scores, heads))


def _below(rows: Sequence[Sequence[float]], share: float) -> list[int]:
    """How many of each row are among the lowest share of all of them; of equal ones those of the first rows."""
    all_ = sorted((score, i) for i, row in enumerate(rows) for score in row)
    lowest = [i for _, i in all_[: int(share * len(all_))]]
    return [lowest.count(i) for i in range(len(rows))]


# -- by loss -----------------------------------------------------------------------------------------------------------


def by_loss(candidates: Candidates, ratios: Ratios, nats: float) -> PruningLevels:
    """Let go what costs no more than so many nats: an equal part of them in each block, or the least felt of all."""
    blocks = range(len(candidates.dims))
    groups = [[i] for i in blocks] if ratios == "uniform" else [list(blocks)]
    gone, heads_gone = [0] * len(candidates.dims), [0] * len(candidates.dims)
    for group in groups:
        left = nats / len(groups)
        while (cheapest := min(_next(candidates, group, gone, heads_gone), default=None)) is not None:
            price, block, is_head = cheapest
            if (left := left - price) < 0:
                break
            (heads_gone if is_head else gone)[block] += 1
    return candidates.ladder(gone[:-1], heads_gone)


def _next(
    candidates: Candidates, group: Sequence[int], gone: Sequence[int], heads_gone: Sequence[int]
) -> Iterator[tuple[float, int, bool]]:
    """The next token and the next head of each block: nats, block, and whether it is a head."""
    for i in group:
        if candidates.may_leave[i] and gone[i] < candidates.geometry.patches - 1:
            yield max(candidates.token_scores[i][gone[i]], 0.0), i, False
        if heads_gone[i] < candidates.most_heads[i]:
            yield max(candidates.head_scores[i][heads_gone[i]], 0.0), i, True


def least_amount(candidates: Candidates, chosen: Callable[[float], PruningLevels], what: str) -> PruningLevels:
    """The choice of the least amount, in [0, 1], that meets the budget.

    Raises:
        BudgetError: none does; the message says what `what` reaches.
    """
    budget, most = candidates.budget, chosen(1.0)
    if not budget.holds(least := candidates.cost(most)):
        raise BudgetError(
            f"{what} leaves {budget.told(least)}, rate {1 - least / budget.base:.3f}, and {budget.asked} asks for "
            f"{budget.told(budget.limit)}: let more go, or raise the budget",
            least=least,
        )
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if budget.holds(candidates.cost(chosen(middle))) else (middle, high)
    return chosen(high)
