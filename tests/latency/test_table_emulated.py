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
from some_tables import table

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.latency import table as module
from edgevit.latency.cost_request import POINTS
from edgevit.latency.fit import StackSample
from edgevit.latency.grid import Grid
from edgevit.network.anatomy import BlockDims

EMBED, TOKENS = 768, 197
BASE = [BlockDims(12, 64, 64, 3072)] * 12
COUNTS = (64, 128, 192)
GRID = Grid.of(BASE, POLICIES["fused"], EMBED, COUNTS)


class EmulatedBench:
    """What `edgevit.latency.measure.StackBench` is to a table, with times by a formula."""

    anchor = GRID.anchor

    def __init__(self, kernel_ms, bytes_per_ms, macs_per_ms, tile, width_tile, together, noise, seed):
        self.kernel_ms, self.bytes_per_ms, self.macs_per_ms = kernel_ms, bytes_per_ms, macs_per_ms
        self.tile, self.width_tile, self.together, self.noise = tile, width_tile, together, noise
        self.random, self.seen, self.measured = np.random.default_rng(seed), [], []

    def matmul(self, inputs, outputs, tokens=TOKENS):
        macs = tiled(tokens, self.tile) * tiled(inputs, self.tile) * tiled(outputs, self.tile)
        moved = 2 * (tokens * inputs + inputs * outputs + tokens * outputs)
        return self.kernel_ms + max(macs / self.macs_per_ms, moved / self.bytes_per_ms)

    def block(self, dims, embed, tokens):
        attention = ffn = 0.0
        if dims.has("attention"):
            width = dims.heads * dims.qk
            rows = tokens * tiled(tokens, self.tile)
            mixing = 2 * dims.heads * rows * tiled(dims.qk, self.width_tile) / self.macs_per_ms
            attention = 2 * self.kernel_ms + mixing
            attention += self.matmul(embed, 3 * width, tokens) + self.matmul(width, embed, tokens)
        if dims.has("ffn"):
            ffn = self.matmul(embed, dims.ffn, tokens) + self.matmul(dims.ffn, embed, tokens) + self.kernel_ms
        ranking = 4 * self.kernel_ms if dims.tokens else 0
        return attention + ffn + ranking + (self.together if attention and ffn else 0)

    def model(self, blocks, embed=EMBED):
        total, tokens = self.matmul(768, embed) + 0.05, TOKENS
        for dims in blocks:
            total += self.block(dims, embed, tokens)
            tokens = dims.tokens or tokens
        return total

    def measure(self, stacks, rounds):
        for stack in stacks:
            if stack not in self.measured:
                self.measured.append(stack)
                exact = self.model(stack.blocks, stack.embed or EMBED)
                for session in range(rounds):
                    shaken = 1 + self.noise * self.random.standard_normal()
                    self.seen.append(StackSample(stack, str(session), exact * shaken))

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


@settings(max_examples=5)
@given(
    kernel_ms=st.floats(0.002, 0.03), bytes_per_ms=st.floats(2e7, 1.2e8), macs_per_ms=st.floats(1e9, 2e10),
    tile=st.sampled_from([16, 32, 64]), width_tile=st.sampled_from([8, 16, 32]), together=st.floats(-0.005, 0.02),
    noise=st.floats(0, 0.01), seed=st.integers(0, 1000),
)  # fmt: skip
def test_plans_on_emulated_boards_are_predicted_within_4_percent_from_some_tens_of_stacks(seed, **board):
    """Of 250 other boards the worst were 3.4 % off, 4.9 at another width, 6.1 with tokens leaving, 10.7 with both."""
    bench = EmulatedBench(**board, seed=seed)
    bench.measure([*GRID.coarse(), *(stack for embed in GRID.narrower for stack in GRID.at_width(embed))], 5)
    bench.measure([stack for count in GRID.fewer for stack in GRID.behind_cuts(count)], 5)
    module._refine(bench, [GRID], POINTS, 5)
    assert 19 + 18 + 15 <= len(bench.measured) <= POINTS + 18 + 15
    of = {"embed": EMBED, "tokens": TOKENS, "depth": 12, "blocks": [BASE[0].sizes]}
    content = table([*module.cost_rows(module._fits(bench, [GRID]))], base=of)
    prices = CostTable.model_validate(content).in_quantity("ms")
    assert prices.embeds == [128, 192, 384, 768] and prices.token_counts == [64, 128, 192, 197]
    drawn = random.Random(seed)
    for _ in range(10):
        plan = list(random_plan(drawn))
        assert prices.cost(plan) == pytest.approx(bench.model(plan), rel=0.04)
        embed = drawn.choice(candidate_widths(EMBED, 16))
        assert prices.at(embed).cost(plan) == pytest.approx(bench.model(plan, embed), rel=0.06), embed
        passing = list(cut(drawn, plan))
        assert prices.cost(passing) == pytest.approx(bench.model(passing), rel=0.07)
        narrow = prices.at(embed).cost(passing)
        assert narrow == pytest.approx(bench.model(passing, embed), rel=0.15), embed


def cut(random, plan):
    """The plan with tokens leaving twice, behind blocks that have their attention."""
    able = [i for i, dims in enumerate(plan[:-1]) if dims.has("attention")]
    positions = dict(zip(sorted(random.sample(able, 2)), sorted(random.sample(COUNTS, 2))[::-1], strict=True))
    return (replace(dims, tokens=positions.get(i, 0)) for i, dims in enumerate(plan))
