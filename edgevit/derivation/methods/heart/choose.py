"""Choose the heads to remove and the number of tokens that each block passes on: by cost or by ratios.

Removed tokens do not return, so the numbers of tokens never rise from block to block. The predicted loss of a token
schedule is the sum of the tokens' scores after the block that removes them.
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
    """How much of each block is removed."""

    tokens: tuple[int, ...]  # the index of the number of tokens passed on in `Candidates.lengths`: 0 for all of them
    heads: tuple[int, ...]  # the number of heads removed, those of the lowest scores

    def with_fewer_tokens(self, block: int, level: int) -> PruningLevels:
        """Return the levels where this block, and each behind it, passes on no more tokens than `level` says."""
        return replace(self, tokens=(*self.tokens[:block], *(max(t, level) for t in self.tokens[block:])))

    def without_head(self, block: int) -> PruningLevels:
        heads = list(self.heads)
        heads[block] += 1
        return replace(self, heads=tuple(heads))


def lengths(geometry: Geometry) -> list[int]:
    """List the numbers of tokens that may reach a block, all tokens first."""
    return [*range(geometry.tokens, geometry.tokens - geometry.patches, -1)]


def may_leave(geometry: Geometry, depth: int) -> list[bool]:
    """Say for each block whether tokens may be removed after it; after the last block that would save nothing."""
    return [i < depth - 1 and "tokens" not in geometry.frozen(i) for i in range(depth)]


class Candidates:
    """All tokens and heads that may be removed from one model, with the cost and predicted loss of each choice."""

    def __init__(
        self, dims: Sequence[BlockDims], geometry: Geometry, budget: Budget, scores: HessianScores, *,
        tokens: Tensor, least_heads: int,
    ) -> None:  # fmt: skip
        self.dims, self.geometry, self.budget = dims, geometry, budget
        self.may_leave = may_leave(geometry, len(dims))
        self.lengths = lengths(geometry) if any(self.may_leave) else [geometry.tokens]
        if budget.prices is not None:
            # A cost table lists few numbers of tokens. Between them removal saves nothing, and ranking tokens costs.
            listed = set(budget.prices.token_counts)
            self.lengths = [n for n in self.lengths if n in listed]
        grown = budget.at_least or {}
        # For each block the highest level, which passes on the fewest tokens.
        self.highest = [len(self.lengths) - 1] * len(dims)
        if grown:
            passed = list(
                accumulate((grown[i].tokens for i in sorted(grown)), lambda n, t: t or n, initial=geometry.tokens)
            )  # of 0 tokens: all
            self.highest = [self.lengths.index(n) for n in passed[1:]]
        self.token_scores: list[list[float]] = tokens.tolist()  # [L - 1, M], in the order of removal
        self.head_scores = [h.sort(stable=True).values.tolist() for h in scores.heads]
        self.head_order = [h.argsort(stable=True).tolist() for h in scores.heads]
        self.token_losses = [_running(row) for row in self.token_scores]
        self.head_losses = [_running(row) for row in self.head_scores]
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
        """Return the blocks of a choice; `tokens` is 0 where a block passes on all that it gets."""
        shaped, before = [], 0
        for d, level, removed in zip(self.dims, choice.tokens, choice.heads, strict=True):
            shaped.append(replace(d, heads=d.heads - removed, tokens=self.lengths[level] if level > before else 0))
            before = level
        return shaped

    def cost(self, choice: PruningLevels) -> float:
        """Return the cost of a model of this choice, in the budget's quantity."""
        prices, level = self.budget.prices, 0
        total = float(self.geometry.outside(self.budget.linear)) if prices is None else prices.fixed
        for i, (next_level, removed) in enumerate(zip(choice.tokens, choice.heads, strict=True)):
            key = (i, level, removed)
            if key not in self._costs:
                self._costs[key] = self._block_cost(*key)
            total += self._costs[key]
            if prices is not None and next_level > level:
                total += prices.cut(self.lengths[next_level])
            level = next_level
        return total

    def _block_cost(self, i: int, level: int, removed: int) -> float:
        """Return the cost of a block that gets the tokens of this level and has this number of heads removed."""
        block, tokens = replace(self.dims[i], heads=self.dims[i].heads - removed), self.lengths[level]
        tokens = tokens if level else self.geometry.stages[block.stage].tokens
        if (prices := self.budget.prices_at(self.geometry, block.stage, tokens)) is not None:
            return prices.block(block)
        return self.geometry.place(block, tokens).cost(self.budget.linear)

    def loss(self, choice: PruningLevels) -> float:
        """Return the predicted loss of a choice in nats."""
        total, before = 0.0, 0
        for i, level in enumerate(choice.tokens[:-1]):
            removed = self.geometry.tokens - self.lengths[level]
            total += self.token_losses[i][removed] - self.token_losses[i][before]
            before = removed
        return total + sum(losses[count] for losses, count in zip(self.head_losses, choice.heads, strict=True))

    def _level(self, removed: int) -> int:
        """Return the highest level at which no more than this number of tokens is removed."""
        return max(i for i, n in enumerate(self.lengths) if self.geometry.tokens - n <= removed)

    def choice(self, tokens: Sequence[int], heads: Sequence[int]) -> PruningLevels:
        """Return the choice with at most these numbers of tokens and heads removed after and in each block."""
        choice = PruningLevels(self.whole.tokens, tuple(map(min, heads, self.most_heads)))
        for i, count in enumerate(tokens):
            if self.may_leave[i]:
                level = min(self._level(min(count, self.geometry.patches - 1)), self.highest[i])
                choice = choice.with_fewer_tokens(i, level)
        return choice


def _running(scores: Sequence[float]) -> list[float]:
    """Sum the first 0, 1, 2, ... scores, with those below zero as zero: removal is not credited with a gain."""
    total = [0.0]
    for score in scores:
        total.append(total[-1] + max(score, 0.0))
    return total


# -- by cost -----------------------------------------------------------------------------------------------------------


def by_macs(candidates: Candidates, ratios: Ratios) -> PruningLevels:
    """Choose greedily by predicted loss per cost until the budget holds; with uniform ratios the best equal ones."""
    if ratios == "uniform":
        return _best_uniform(candidates)
    choice, budget = candidates.whole, candidates.budget
    while not budget.allows(cost := candidates.cost(choice)):
        loss = candidates.loss(choice)

        def price(next_choice: PruningLevels, cost: float = cost, loss: float = loss) -> float:
            return max(candidates.loss(next_choice) - loss, 0.0) / (cost - candidates.cost(next_choice))

        smaller = [c for c in _steps(candidates, choice) if candidates.cost(c) < cost]
        if not smaller:
            return _smallest(candidates)
        choice = min(smaller, key=price)
    return choice


def _smallest(candidates: Candidates) -> PruningLevels:
    """Remove all that may be removed, where no single step saves more than the ranking of its tokens costs.

    Raises:
        BudgetError: that does not meet the budget either.
    """
    budget = candidates.budget
    depth, patches = len(candidates.dims), candidates.geometry.patches
    choice = candidates.choice([patches] * (depth - 1), candidates.most_heads)
    if not budget.allows(least := candidates.cost(choice)):
        raise BudgetError(
            f"{budget.option} leaves {budget.text(budget.limit)}, and the model without all removable tokens and heads "
            f"takes {budget.text(least)}; raise the budget",
            least=least,
        )
    return choice


def _steps(candidates: Candidates, choice: PruningLevels) -> Iterator[PruningLevels]:
    """List the choices that remove one more head, or tokens to the next level after one block.

    With a cost table, tokens go to any higher level, because the next one may save almost nothing.
    """
    for i, level in enumerate(choice.tokens):
        last = candidates.highest[i] if candidates.budget.prices is not None else min(level + 1, candidates.highest[i])
        for higher in range(level + 1, last + 1) if candidates.may_leave[i] else ():
            yield choice.with_fewer_tokens(i, higher)
    for i, removed in enumerate(choice.heads):
        if removed < candidates.most_heads[i]:
            yield choice.without_head(i)


def _best_uniform(candidates: Candidates) -> PruningLevels:
    """Choose the best pair of a number of tokens and a number of heads, equal in all blocks, within the budget."""
    choices = []
    for heads in range(max(candidates.most_heads, default=0) + 1):
        for length in candidates.lengths:
            choice = _uniform(candidates, candidates.geometry.tokens - length, [heads] * len(candidates.dims))
            if candidates.budget.allows(candidates.cost(choice)):
                choices.append(choice)
                break
    return min(choices, key=candidates.loss)


def _uniform(candidates: Candidates, tokens: int, heads: Sequence[int]) -> PruningLevels:
    return candidates.choice([tokens] * (len(candidates.dims) - 1), heads)


# -- by ratios ---------------------------------------------------------------------------------------------------------


def by_ratio(candidates: Candidates, ratios: Ratios, tokens: float, heads: float) -> PruningLevels:
    """Remove these shares of the tokens and heads: of each block, or the lowest scores of all blocks together."""
    if ratios == "uniform":
        return _uniform(
            candidates, int(tokens * candidates.geometry.patches), [int(heads * d.heads) for d in candidates.dims]
        )
    return candidates.choice(_below(candidates.token_scores, tokens), _below(candidates.head_scores, heads))


def _below(rows: Sequence[Sequence[float]], share: float) -> list[int]:
    """Count per row the scores among the lowest share of all rows; of equal scores, the first rows' come first."""
    all_ = sorted((score, i) for i, row in enumerate(rows) for score in row)
    lowest = [i for _, i in all_[: int(share * len(all_))]]
    return [lowest.count(i) for i in range(len(rows))]


def least_amount(candidates: Candidates, chosen: Callable[[float], PruningLevels], options: str) -> PruningLevels:
    """Return the choice of the least amount, in [0, 1], that meets the budget.

    Args:
        options: the options that set the amount, for the message.

    Raises:
        BudgetError: no amount meets it.
    """
    budget, most = candidates.budget, chosen(1.0)
    if not budget.allows(least := candidates.cost(most)):
        raise BudgetError(
            f"{options} leaves {budget.text(least)}, rate {1 - least / budget.base:.3f}, and {budget.option} asks for "
            f"{budget.text(budget.limit)}: let more go, or raise the budget",
            least=least,
        )
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if budget.allows(candidates.cost(chosen(middle))) else (middle, high)
    return chosen(high)
