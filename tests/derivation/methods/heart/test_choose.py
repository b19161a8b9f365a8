"""What goes: within the budget, within the loss, and by ratios; tokens that left do not come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from some_tables import rows, table

from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.methods.heart.choose import (
    Candidates,
    PruningLevels,
    by_macs,
    by_ratio,
    least_amount,
)
from edgevit.derivation.methods.heart.scores import HessianScores
from edgevit.errors import BudgetError

RATIOS, SITES = ("sensitivity", "uniform"), ("attention", "ffn")


@pytest.fixture
def candidates(small_vit: Callable[..., Any]) -> Callable[..., Candidates]:
    """Of four blocks, 16 patches and four heads: what is lost rises with the place, and differs between blocks."""

    def make(rate: float = 0.3, **changed: Any) -> Candidates:
        network = small_vit(depth=4, num_heads=4)
        dims, geometry = list(network.dims), network.geometry
        rows = torch.arange(1.0, 17, dtype=torch.float64) * torch.tensor([[3.0], [1.0], [2.0]]).double()
        heads = tuple(torch.tensor([4.0, 2.0, 8.0, 6.0], dtype=torch.float64) * (i + 1) for i in range(4))
        budget = changed.pop("budget", make_budget(geometry.macs(dims), geometry.params(dims), rate=rate))
        how = {"tokens": rows, "least_heads": 1, **changed}
        return Candidates(dims, geometry, budget, HessianScores(rows, rows, heads, rows[:, 0]), **how)

    return make


def check_whole(found: Candidates, choice: PruningLevels) -> None:
    """What a choice costs is what the model costs, and no block has more tokens than the one before it."""
    shaped = found.shaped(choice)
    assert found.cost(choice) == found.geometry.macs(shaped)
    passed = [b.tokens for b in shaped if b.tokens]
    assert all(one > other for one, other in pairwise(passed)) and shaped[-1].tokens == 0
    assert all(b.heads >= 1 for b in shaped) and all(n >= 2 for n in passed)


@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6])
def test_macs_are_met_and_not_by_much(candidates: Callable[..., Candidates], ratios: Any, rate: float) -> None:
    found = candidates(rate)
    choice = by_macs(found, ratios)
    check_whole(found, choice)
    assert rate <= 1 - found.cost(choice) / found.budget.base < rate + (0.03 if ratios == "sensitivity" else 0.1)
    if ratios == "sensitivity":
        assert found.loss(choice) <= found.loss(by_macs(found, "uniform")) * 1.1


def test_a_schedule_loses_each_token_where_it_leaves(candidates: Callable[..., Candidates]) -> None:
    found = candidates()
    choice = found.choice([2, 5, 5], [0, 0, 0, 1])
    assert [b.tokens for b in found.shaped(choice)] == [15, 12, 0, 0]
    # two after the first block, three more after the second, and the head of the lowest score
    assert found.loss(choice) == pytest.approx(3 * (1 + 2) + (3 + 4 + 5) + 2 * 4)
    assert found.choice([5, 2, 2], [0] * 4).tokens == (5, 5, 5, 5)  # those that left do not come back


@pytest.mark.parametrize(
    ("tokens", "heads", "passed", "gone"), [(0.25, 0.5, [13, 0, 0, 0], 2), (0.6, 0.0, [8, 0, 0, 0], 0)]
)
def test_equal_ratios_are_those_of_every_block(
    candidates: Callable[..., Candidates], tokens: float, heads: float, passed: list[int], gone: int
) -> None:
    found = candidates()
    choice = by_ratio(found, "uniform", tokens, heads)
    assert [b.tokens for b in found.shaped(choice)] == passed and choice.heads == (gone,) * 4
    check_whole(found, choice)


def test_ratios_by_sensitivity_take_more_where_scores_are_lower(candidates: Callable[..., Candidates]) -> None:
    found = candidates()
    choice = by_ratio(found, "sensitivity", 0.5, 0.5)
    # the 24th of 48 scores is 14: four scores of the first block are no higher, 14 of the second, and none comes back
    assert [found.geometry.tokens - found.lengths[r] for r in choice.tokens] == [4, 14, 14, 14]
    assert choice.heads == (3, 2, 1, 1)  # the 8th of 16 is 8: four heads of the first block, of which one stays


def test_of_equal_scores_no_more_go_than_the_share(candidates: Callable[..., Candidates]) -> None:
    found = candidates(tokens=torch.zeros(3, 16, dtype=torch.float64))
    found.head_scores = [[0.0] * 4] * 4
    choice = by_ratio(found, "sensitivity", 0.25, 0.5)
    assert found.geometry.reaching(found.shaped(choice))[-1] == 17 - 12, "of 48 places a quarter, in the first block"
    assert sum(choice.heads) == 6, "of the 16 heads eight, of which each block keeps one"


def test_the_least_amount_that_meets_the_budget_is_taken(candidates: Callable[..., Candidates]) -> None:
    found = candidates(0.3)
    choice = least_amount(found, lambda share: by_ratio(found, "uniform", share, share), "ratios")
    assert found.budget.allows(found.cost(choice))
    assert not found.budget.allows(found.cost(by_ratio(found, "uniform", 0.2, 0.2)))
    with pytest.raises(BudgetError, match=r"ratios leaves .* MACs, rate 0\.\d+, and rate 0\.3 asks for"):
        least_amount(found, lambda share: by_ratio(found, "uniform", share / 5, share / 5), "ratios")


def by_table(ms: float, cut_ms: float = 0.01, **more: Any) -> Budget:
    """Of a base of four blocks that takes 4.2 ms; a block takes its share of 17 tokens."""
    attention = {(h, w): 0.01 * h * w - 0.04 for h in (1, 4) for w in (8, 16)}
    ffn = {w: 0.4 * w / 256 for w in (8, 256)}
    costs = rows(0.2, attention, ffn)
    for tokens in (16, 8):
        fewer = ({size: round(cost * tokens / 17, 9) for size, cost in site.items()} for site in (attention, ffn))
        costs += [*rows(None, *fewer, tokens=tokens), {"part": "cut", "tokens": tokens, "ms": cut_ms}]
    content = table(costs, base={"depth": 4, "blocks": [{"heads": 4, "qk": 16, "vo": 16, "ffn": 256}]})
    return replace(make_budget(1, 1, ms=ms, table=CostTable.model_validate(content)), **more)


@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize(("ms", "cut_ms"), [(3.9, 0.01), (2.5, 0.01), (2.5, 0.3), (1.5, 0.0)])
def test_milliseconds_are_kept_by_the_table_with_counts_that_fill_tiles(
    candidates: Callable[..., Candidates], ratios: Any, ms: float, cut_ms: float
) -> None:
    found = candidates(budget=by_table(ms, cut_ms))
    assert found.lengths == [17, 16, 8]
    choice = by_macs(found, ratios)
    prices = found.budget.prices
    assert prices is not None and found.cost(choice) == pytest.approx(prices.cost(found.shaped(choice)))
    assert 0.5 * ms < found.cost(choice) <= ms * (1 + 1e-9)


def test_a_plan_grows_by_heads_and_tokens_that_it_has_less_of(candidates: Callable[..., Candidates]) -> None:
    small = candidates(budget=by_table(1.5))
    start = small.shaped(by_macs(small, "sensitivity"))
    grown = candidates(budget=by_table(2.0, at_least=dict(enumerate(start))))
    larger = grown.shaped(by_macs(grown, "sensitivity"))
    given, least = (grown.geometry.reaching(dims) for dims in (larger, start))
    assert all(a >= b for a, b in zip(given, least, strict=True)) and larger != start
    assert all(a.heads >= b.heads for a, b in zip(larger, start, strict=True))
