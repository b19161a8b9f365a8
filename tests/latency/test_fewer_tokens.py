"""Costs of blocks that are given fewer tokens, from five stacks for each number: exact where the law holds."""

import numpy as np
import pytest

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.latency.fewer_tokens import fit_fewer
from edgevit.latency.fit import StackFigure, fit_costs
from edgevit.latency.grid import Grid
from edgevit.network.anatomy import BlockDims

TOKENS, KERNEL, RANKING = 197, 0.02, 0.03
GRID = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"], counts=(64, 128, 192))


def attention(heads, width, tokens):
    """Kernels, projections, and scores, which fall with the square."""
    share = tokens / TOKENS
    return 4 * KERNEL + (0.0004 * share + 0.0001 * share**2) * heads * width if heads else 0


def ffn(neurons, tokens):
    return 3 * KERNEL + 0.0002 * neurons * tokens / TOKENS if neurons else 0


def cost(stack):
    tokens, total = TOKENS, 0.4
    if stack.cut is not None:
        total += attention(stack.cut.heads, stack.cut.width, TOKENS) + RANKING
        tokens = stack.cut.tokens
    return total + stack.count * (attention(stack.heads, stack.width, tokens) + ffn(stack.neurons, tokens))


def figures(stacks, random=None, noise=0.002):
    shaken = [1.0 if random is None else 1 + noise * random.standard_normal() for _ in stacks]
    return {s: StackFigure(cost(s) * shake, noise) for s, shake in zip(stacks, shaken, strict=True)}


def fitted(random=None):
    base = fit_costs(figures(GRID.coarse(), random))
    return base, fit_fewer(base, {n: figures(GRID.behind_cuts(n), random) for n in GRID.fewer})


def test_five_stacks_tell_what_every_size_takes():
    base, found = fitted()
    assert [one.tokens for one in found] == [192, 128, 64]
    for one in found:
        assert one.cut == pytest.approx(RANKING, rel=0.01)
        for (heads, width), with_all in base.attention.items():
            taken = one.attention.start + one.attention.slope * with_all
            assert taken == pytest.approx(attention(heads, width, one.tokens), rel=1e-3)
        for neurons, with_all in base.ffn.items():
            assert one.ffn.start + one.ffn.slope * with_all == pytest.approx(ffn(neurons, one.tokens), rel=1e-3)


def test_with_noise_nothing_is_less_than_nothing():
    for seed in range(5):
        _, found = fitted(np.random.default_rng(seed))
        for one in found:
            assert min(one.cut, one.attention.start, one.ffn.start) >= 0
            assert one.attention.slope == pytest.approx(
                (4 * one.tokens / TOKENS + (one.tokens / TOKENS) ** 2) / 5, rel=0.15
            )
            assert one.ffn.slope == pytest.approx(one.tokens / TOKENS, rel=0.1)


def test_five_stacks_for_each_of_three_numbers_at_the_most():
    assert GRID.fewer == (192, 128, 64)
    assert Grid.of([GRID.most] * 12, POLICIES["fused"], counts=range(64, 577, 64)).fewer == (576, 320, 64)
    for n in GRID.fewer:
        stacks = GRID.behind_cuts(n)
        assert len(stacks) == 5 and {s.cut.tokens for s in stacks} == {n} and GRID.within(stacks) == []
        assert [s.count for s in stacks] == [0, 6, 6, 6, 6]
    of_two = Grid.of([GRID.most] * 2, POLICIES["fused"], counts=(64,))
    assert max(len(s.blocks) for s in of_two.behind_cuts(64)) == 2, "a base of two blocks has no more"
