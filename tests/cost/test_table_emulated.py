"""Tables of emulated boards: kernels that take time by themselves, tiles, memory and arithmetic that bound them, noise.

No board was measured for this: it shows that a coarse grid and its refinements find what such a cost function does.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.cost import table as module
from edgevit.cost.fit import Sample
from edgevit.cost.grid import Grid
from edgevit.cost.request import POINTS
from edgevit.derive.allocate.policy import POLICIES
from edgevit.derive.allocate.prices import BlockPrices, Prices
from edgevit.derive.embedding import ladder
from edgevit.models.anatomy import BlockDims

EMBED, TOKENS = 768, 197
BASE = [BlockDims(12, 64, 64, 3072)] * 12
GRID = Grid.of(BASE, POLICIES["fused"], EMBED)


class EmulatedBench:
    """What `edgevit.cost.measure.Bench` is to a table, with times by a formula."""

    anchor = GRID.anchor

    def __init__(self, kernel_ms, bytes_per_ms, macs_per_ms, tile, width_tile, together, noise, seed):
        self.kernel_ms, self.bytes_per_ms, self.macs_per_ms = kernel_ms, bytes_per_ms, macs_per_ms
        self.tile, self.width_tile, self.together, self.noise = tile, width_tile, together, noise
        self.random, self.seen, self.known = np.random.default_rng(seed), [], []

    def matmul(self, inputs, outputs):
        macs = TOKENS * tiled(inputs, self.tile) * tiled(outputs, self.tile)
        moved = 2 * (TOKENS * inputs + inputs * outputs + TOKENS * outputs)
        return self.kernel_ms + max(macs / self.macs_per_ms, moved / self.bytes_per_ms)

    def block(self, dims, embed):
        attention = ffn = 0.0
        if dims.has_attention:
            width = dims.heads * dims.qk
            mixing = 2 * dims.heads * TOKENS**2 * tiled(dims.qk, self.width_tile) / self.macs_per_ms
            attention = self.matmul(embed, 3 * width) + self.matmul(width, embed) + 2 * self.kernel_ms + mixing
        if dims.has_ffn:
            ffn = self.matmul(embed, dims.ffn) + self.matmul(dims.ffn, embed) + self.kernel_ms
        return attention + ffn + (self.together if attention and ffn else 0)

    def model(self, blocks, embed=EMBED):
        return self.matmul(768, embed) + 0.05 + sum(self.block(dims, embed) for dims in blocks)

    def measure(self, stacks, rounds):
        for stack in stacks:
            if stack not in self.known:
                self.known.append(stack)
                exact = self.model([stack.dims] * stack.count, stack.embed or EMBED)
                for session in range(rounds):
                    shaken = 1 + self.noise * self.random.standard_normal()
                    self.seen.append(Sample(stack, str(session), exact * shaken))

    def samples(self, quantity):
        return self.seen if quantity == "ms" else []

    def anchor_ms(self):
        return self.model(BASE)


def tiled(size, tile):
    return -(-size // tile) * tile


def random_plan(random):
    for dims in BASE:
        width, fate = random.choice(range(16, 65, 8)), random.random()
        made = BlockDims(random.randint(2, dims.heads), width, width, 8 * random.randint(1, dims.ffn // 8))
        if fate > 0.15:
            yield (
                BlockDims(0, 0, 0, made.ffn)
                if fate < 0.3
                else made
                if fate > 0.45
                else BlockDims(made.heads, width, width, 0)
            )


@settings(max_examples=12)
@given(
    kernel_ms=st.floats(0.002, 0.03), bytes_per_ms=st.floats(2e7, 1.2e8), macs_per_ms=st.floats(1e9, 2e10),
    tile=st.sampled_from([16, 32, 64]), width_tile=st.sampled_from([8, 16, 32]), together=st.floats(-0.005, 0.02),
    noise=st.floats(0, 0.01), seed=st.integers(0, 1000),
)  # fmt: skip
def test_plans_on_emulated_boards_are_predicted_within_3_percent_from_some_tens_of_stacks(seed, **board):
    bench = EmulatedBench(**board, seed=seed)
    bench.measure([*GRID.coarse(), *(stack for embed in GRID.narrower for stack in GRID.rung(embed))], 5)
    module._refine(bench, GRID, POINTS, 5)
    found = module._found(bench, GRID)["ms"]
    assert list(found) == [None, 384, 192, 128] and 19 + 18 <= len(bench.known) <= POINTS + 18
    narrower = tuple(prices_of(costs, embed) for embed, costs in found.items() if embed is not None)
    prices = replace(prices_of(found[None], EMBED), narrower=narrower)
    drawn = random.Random(seed)
    for _ in range(10):
        plan = list(random_plan(drawn))
        assert prices.cost(plan, range(len(plan))) == pytest.approx(bench.model(plan), rel=0.03)
        embed = drawn.choice(ladder(EMBED, 16))
        assert prices.at(embed).cost(plan, range(len(plan))) == pytest.approx(bench.model(plan, embed), rel=0.06), embed


def prices_of(costs, embed):
    sizes, neurons = sorted(costs.attention), sorted(costs.ffn)
    block = BlockPrices(
        np.array([(h, w, w) for h, w in sizes]), np.array([costs.attention[size] for size in sizes]),
        np.array(neurons), np.array([costs.ffn[n] for n in neurons]), costs.together, "linear",
    )  # fmt: skip
    return Prices("ms", costs.fixed, (block,), tuple(BASE), embed)
