"""Costs at narrower embeddings from a few stacks there: exact where the law holds, never falling with noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.latency.fit import StackFigure, fit_costs
from edgevit.latency.grid import Grid
from edgevit.latency.narrower import fit_narrower
from edgevit.latency.stacks import Stack
from edgevit.network.anatomy import BlockDims

EMBED = 768
GRID = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"], EMBED)


def cost(stack, kernel=0.02):
    """A kernel's own time, and products that shrink with the embedding; scores do not."""
    share = (stack.embed or EMBED) / EMBED
    attention = 4 * kernel + (0.0004 * share + 0.0001) * stack.heads * stack.width if stack.heads else 0
    ffn = 3 * kernel + 0.0002 * share * stack.neurons if stack.neurons else 0
    together = -0.5 * kernel if stack.heads and stack.neurons else 0
    return 0.1 + 0.3 * share + stack.count * (attention + ffn + together)


def figures(stacks, random=None, noise=0.005, **how):
    shaken = {s: 1.0 if random is None else 1 + noise * random.standard_normal() for s in stacks}
    return {s: StackFigure(cost(s, **how) * shaken[s], noise) for s in stacks}


def test_a_few_stacks_tell_what_every_size_takes():
    base = fit_costs(figures(GRID.coarse()))
    found = fit_narrower(base, {embed: figures(GRID.rung(embed)) for embed in GRID.narrower})
    assert list(found) == list(GRID.narrower) == [384, 192, 128]
    for embed, costs in found.items():
        assert costs.attention.keys() == base.attention.keys() and costs.ffn.keys() == base.ffn.keys()
        for stack in GRID.coarse()[1:]:
            there = Stack(stack.count, stack.heads, stack.width, stack.neurons, embed)
            assert costs.predicted(stack) == pytest.approx(cost(there), rel=2e-3), there.label


def test_sizes_that_the_base_does_not_list_are_passed_over():
    base, rung = fit_costs(figures(GRID.coarse())), GRID.rung(384)
    odd = [Stack(6, 5, 64, 0, 384), Stack(6, 0, 0, 1000, 384)]
    assert fit_narrower(base, {384: figures([*rung, *odd])}) == fit_narrower(base, {384: figures(rung)})
    assert fit_narrower(base, {}) == {}


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.05), kernel=st.sampled_from([0.0, 0.02, 0.5]))
def test_with_noise_no_cost_falls_with_size_or_with_the_embedding(seed, noise, kernel):
    random = np.random.default_rng(seed)
    base = fit_costs(figures(GRID.coarse(), random, noise, kernel=kernel))
    found = fit_narrower(base, {e: figures(GRID.rung(e), random, noise, kernel=kernel) for e in GRID.narrower})
    rungs = [base, *found.values()]
    assert all(np.diff([costs.fixed for costs in rungs]) <= 0) and rungs[-1].fixed >= 0
    grids = np.array([list(costs.attention.values()) for costs in rungs])  # [rungs, sizes]
    thin = np.array([[costs.ffn[n] for n in sorted(costs.ffn)] for costs in rungs])
    assert (np.diff(grids, axis=0) <= 0).all() and (np.diff(thin, axis=0) <= 0).all() and grids.min() > 0
    assert (np.diff(thin, axis=1) >= 0).all() and thin.min() > 0
    for costs in rungs:
        by_size = np.array([[costs.attention[h, w] for w in (16, 40, 64)] for h in (2, 7, 12)])
        assert (np.diff(by_size, axis=0) >= 0).all() and (np.diff(by_size, axis=1) >= 0).all()
        assert costs.together >= -by_size.min()
