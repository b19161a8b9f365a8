"""Which sizes are measured: a grid that covers what a policy can ask for, then the gaps that are least certain."""

import pytest

from edgevit.derivation.allocate.policy import POLICIES, smallest
from edgevit.latency.grid import Grid
from edgevit.latency.stacks import Stack
from edgevit.network.anatomy import BlockDims

TINY = [BlockDims(3, 64, 64, 768)] * 12


def sizes(stacks):
    attention = {(s.heads, s.width) for s in stacks if s.heads and not s.neurons}
    return attention, sorted({s.neurons for s in stacks if s.neurons and not s.heads})


@pytest.mark.parametrize("name", POLICIES)
def test_the_grid_reaches_from_the_smallest_that_a_policy_allows_to_the_base(name, small_vit):
    network = small_vit(num_heads=4)
    dims = list(network.dims)
    (least, _) = smallest(dims, POLICIES[name], network.geometry)
    attention, neurons = sizes(Grid.of(dims, POLICIES[name]).coarse())
    heads, widths = {h for h, _ in attention}, {w for _, w in attention}
    assert attention == {(h, w) for h in heads for w in widths}, "a full grid"
    assert (min(widths), max(widths), max(heads)) == (least.qk, dims[0].qk, 4)
    assert (neurons[0], neurons[-1]) == (least.ffn, dims[0].ffn)
    assert min(heads) == (2 if POLICIES[name].equal else 1)


def test_some_tens_of_stacks_do_for_a_large_base():
    found = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"]).coarse()
    attention, neurons = sizes(found)
    assert len(found) == 19 and len(attention) == 9 and neurons == [8, 416, 800, 1568, 2336, 3072]
    assert found[0] == Stack(12, 12, 64, 3072), "the base itself comes first"
    thin = [s for s in found if s.dims == BlockDims(0, 0, 0, 8)]
    assert [s.count for s in thin] == [1, 6], "two depths of nearly nothing tell what lies outside the blocks"
    assert sum(1 for s in found if s.heads and s.neurons) == 3


@pytest.mark.parametrize(
    ("embed", "name", "expected"),
    [(768, "fused", (384, 192, 128)), (192, "fused", (96, 48, 32)), (64, "fused", (32, 16)), (64, "free", (32, 16, 11)),
     (16, "fused", ()), (None, "fused", ())],
)  # fmt: skip
def test_a_few_narrower_embeddings_down_to_the_narrowest_are_measured_with_six_stacks_each(embed, name, expected):
    grid = Grid.of(TINY, POLICIES[name], embed)
    assert grid.narrower == expected and all(stack.embed is None for stack in grid.coarse())
    listed = {(s.heads, s.width, s.neurons) for s in grid.coarse()}
    for width in expected:
        stacks = grid.at_width(width)
        assert len(stacks) == 6 and {stack.embed for stack in stacks} == {width}
        assert {(s.heads, s.width, s.neurons) for s in stacks} <= listed, "the base's costs are known of all of them"
        assert grid.within(stacks) == []


def test_heads_of_every_block_are_listed_where_blocks_differ():
    grid = Grid.of([BlockDims(6, 32, 40, 64), BlockDims(3, 64, 64, 96)], POLICIES["paper"])
    attention, neurons = sizes(grid.coarse())
    assert {3, 6} <= {h for h, _ in attention} and max(w for _, w in attention) == 64 and neurons[-1] == 96


def test_sizes_that_are_asked_for_are_measured_site_by_site_and_once():
    grid = Grid.of(TINY, POLICIES["fused"])
    asked = [BlockDims(2, 24, 24, 100), BlockDims(2, 24, 24, 0), BlockDims(0, 0, 0, 200), BlockDims(3, 16, 32, 100)]
    assert grid.at(asked) == [Stack(6, 2, 24, 0), Stack(6, 3, 24, 0), Stack(6, 0, 0, 100), Stack(6, 0, 0, 200)]


def test_what_was_measured_of_larger_bases_is_left_out():
    grid = Grid.of(TINY, POLICIES["fused"])
    larger = [Stack(6, 4, 64, 0), Stack(6, 2, 96, 0), Stack(6, 0, 0, 1024), Stack(12, 3, 64, 769)]
    assert grid.within([*larger, *grid.coarse()]) == grid.coarse()


def test_the_gap_with_the_step_is_refined_first_and_none_finer_than_the_policy():
    grid = Grid.of(TINY, POLICIES["fused"])
    flat = {(h, w): 0.1 + h * w / 1000 for h in (2, 3) for w in (16, 24, 32)}  # no gap wider than a step of 8
    step = {n: (0.2 if n < 400 else 1.0) + n / 1e4 for n in (8, 192, 384, 576, 768)}
    found = grid.between(flat, step)
    assert found[0][1] == Stack(6, 0, 0, 480), "in the middle of the step, on a multiple of 8"
    assert all(stack.neurons for _, stack in found)
    assert [doubt for doubt, _ in found] == sorted((doubt for doubt, _ in found), reverse=True)
    assert 0.1 < found[0][0] < 0.4, "of a rise of 0.8"
