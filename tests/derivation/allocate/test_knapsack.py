"""The allocation against every possible one, on menus small enough to try them all."""

from fractions import Fraction
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.derivation.allocate.knapsack import BlockMenu, Choice, allocate
from edgevit.errors import BudgetError

LOSSES = st.integers(0, 40).map(lambda n: n / 8)  # sums of eighths are exact
MODULE_COSTS = {
    "MACs": st.integers(0, 30).map(lambda n: 150 * n),
    "odd counts": st.integers(0, 10**9),
    "milliseconds": st.integers(1, 400).map(lambda n: n / 1000),
    "any number": st.floats(0, 10, allow_subnormal=False),
}


def menus_of(costs, most_blocks=3):
    choices = st.lists(st.builds(Choice, costs, LOSSES, st.none()), min_size=1, max_size=4)
    alone = st.just([]) | choices
    menu = st.builds(BlockMenu, choices, choices, st.none() | LOSSES, alone, alone)
    of_one = st.builds(BlockMenu, st.just([]), st.just([]), st.none() | LOSSES, choices)  # a module has to go
    return st.lists(menu | of_one, min_size=1, max_size=most_blocks)


def exact(cost):
    return Fraction(str(cost))


def ways(menu):
    """Cost and loss of every way to make one block."""
    made = [(exact(a.cost) + exact(f.cost), a.loss + f.loss) for a in menu.attention for f in menu.ffn]
    made += [(exact(c.cost), c.loss) for c in (*menu.attention_alone, *menu.ffn_alone)]
    return made if menu.dropped is None else [*made, (Fraction(0), menu.dropped)]


def least_loss(menus, limit):
    combined = {Fraction(0): 0.0}  # cost -> least loss
    for menu in menus:
        grown = {}
        for (cost, loss), (more, extra) in product(combined.items(), ways(menu)):
            grown[cost + more] = min(grown.get(cost + more, inf), loss + extra)
        combined = grown
    return min((loss for cost, loss in combined.items() if cost <= limit), default=None)


def least_cost(menus):
    return sum((min(cost for cost, _ in ways(menu)) for menu in menus), Fraction(0))


def cost_of(allocation):
    return sum((exact(c.cost) for pair in allocation if pair for c in pair if c), Fraction(0))


def loss_of(menus, allocation):
    pairs = zip(menus, allocation, strict=True)
    return sum(menu.dropped if pair is None else sum(c.loss for c in pair if c) for menu, pair in pairs)


def check_taken(menus, allocation):
    for menu, pair in zip(menus, allocation, strict=True):
        if pair is None:
            assert menu.dropped is not None
        elif None in pair:
            attention, ffn = pair
            assert attention in menu.attention_alone if ffn is None else ffn in menu.ffn_alone
        else:
            assert pair[0] in menu.attention and pair[1] in menu.ffn


def spent_in_any_case(menus):
    """The cheapest choices of blocks that can be made in one way only."""
    settled = [m for m in menus if m.dropped is None and not m.attention_alone and not m.ffn_alone]
    return sum(
        (min(exact(c.cost) for c in m.attention) + min(exact(c.cost) for c in m.ffn) for m in settled), Fraction(0)
    )


@pytest.mark.quick("milliseconds")
@pytest.mark.parametrize("costs", ["MACs", "milliseconds"])
@given(data=st.data())
def test_with_a_common_divisor_the_loss_is_the_least_there_is(costs, data):
    menus = data.draw(menus_of(MODULE_COSTS[costs]))
    limit = data.draw(MODULE_COSTS[costs].map(lambda c: 3 * c if costs == "MACs" else round(3 * c, 3)))
    best = least_loss(menus, exact(limit))
    if best is None:
        with pytest.raises(BudgetError, match="cheapest choices cost"):
            allocate(menus, limit)
        return
    found = allocate(menus, limit)
    check_taken(menus, found)
    assert cost_of(found) <= exact(limit)
    assert loss_of(menus, found) == best


@pytest.mark.quick("odd counts")
@pytest.mark.parametrize("costs", ["odd counts", "any number"])
@given(data=st.data(), bins=st.integers(1, 300), share=st.floats(0, 1))
def test_rounded_to_bins_it_is_no_worse_than_for_a_limit_lower_by_a_bin_per_module(costs, data, bins, share):
    menus = data.draw(menus_of(MODULE_COSTS[costs]))
    low = least_cost(menus)
    high = sum((max((cost for cost, _ in ways(menu)), default=Fraction(0)) for menu in menus), low)
    limit = float(low + (high - low) * exact(share))
    if exact(limit) < low:  # rounded down by float
        return
    found = allocate(menus, limit, bins=bins)
    check_taken(menus, found)
    assert cost_of(found) <= exact(limit)
    bound = least_loss(menus, exact(limit) - 2 * len(menus) * (exact(limit) - spent_in_any_case(menus)) / bins)
    assert loss_of(menus, found) >= least_loss(menus, exact(limit))
    assert bound is None or loss_of(menus, found) <= bound


def test_of_equally_cheap_ways_to_make_a_block_the_one_that_loses_less_is_taken():
    """Where rounded up not even the cheapest fits, and so all is as cheap as can be."""
    both = [Choice(1, 0.0, "both")]
    menu = BlockMenu(both, both, None, ffn_alone=[Choice(2, 0.125, "alone")])
    assert loss_of([menu] * 2, allocate([menu] * 2, 4, bins=1)) == 0


def test_one_block_may_be_dropped_for_the_sake_of_the_others():
    menu = [Choice(10, 3.0, "narrow"), Choice(40, 0.0, "wide")]
    one, other = BlockMenu(menu, menu, dropped=2.0), BlockMenu(menu, menu, dropped=9.0)
    found = allocate([one, other], 80)
    assert found[0] is None and [c.value for c in found[1]] == ["wide", "wide"]
    kept = [BlockMenu(menu, menu, dropped=None), BlockMenu(menu, menu, dropped=20.0)]
    assert loss_of(kept, allocate(kept, 80)) == 9.0, "three of the four are narrow"


def test_a_module_goes_alone_where_that_loses_less_than_its_block_or_what_is_narrow():
    menu = [Choice(10, 3.0, "narrow"), Choice(40, 0.0, "wide")]
    alone = [Choice(8, 4.0, "narrow"), Choice(38, 1.0, "wide")]  # a block with one site costs 2 less
    (pair,) = allocate([BlockMenu(menu, menu, dropped=None, attention_alone=alone)], 49)
    assert [pair[0].value, pair[1]] == ["wide", None]
    (pair,) = allocate([BlockMenu(menu, menu, dropped=None, ffn_alone=alone)], 9)
    assert [pair[0], pair[1].value] == [None, "narrow"], "cheaper than any pair"


def test_where_rounding_leaves_no_room_the_cheapest_ways_are_taken():
    menus = [BlockMenu([Choice(7, 1, None)], [Choice(7, 1, None)], None, ffn_alone=[Choice(7, 3, "least")])] * 3
    assert [pair[1].value for pair in allocate(menus, 21, bins=2)] == ["least"] * 3
    with pytest.raises(BudgetError, match="cheapest choices cost 21"):
        allocate(menus, 20)


def test_losses_that_are_not_convex_are_no_trap():
    """A greedy allocation takes the first small gain, and cannot afford the great one."""
    stairs = [Choice(1, 10, 1), Choice(2, 9.9, 2), Choice(3, 9.8, 3), Choice(10, 0, 10)]
    still = [Choice(1, 0.0, None)]
    found = allocate([BlockMenu(stairs, still, None), BlockMenu(stairs, still, None)], 13)
    assert sorted(pair[0].value for pair in found) == [1, 10]


def test_what_rounding_leaves_over_is_spent():
    """One bin is too coarse for anything but the cheapest: all of the limit is slack."""
    random = np.random.default_rng(0)
    widths = [Choice(int(c), 1 / (k + 1), k) for k, c in enumerate(np.sort(random.integers(1, 10**6, 50)))]
    menus = [BlockMenu(widths, widths, None)] * 4
    limit = 4 * 10**6
    found = allocate(menus, limit, bins=1)
    spare = limit - cost_of(found)
    taken = [c for pair in found for c in pair]
    assert spare >= 0 and all(c.cost - t.cost > spare for t in taken for c in widths if c.loss < t.loss)
    assert loss_of(menus, allocate(menus, limit)) <= loss_of(menus, found)


def test_a_limit_that_nothing_meets_is_refused_with_the_reachable_minimum():
    menus = [BlockMenu([Choice(0.25, 0, None)], [Choice(0.5, 0, None)], None)] * 3
    assert len(allocate(menus, 2.25)) == 3
    with pytest.raises(BudgetError, match=r"leaves 2\.2 for the blocks .* cheapest choices cost 2\.25; raise the bud"):
        allocate(menus, 2.2)


def test_tenths_are_added_as_they_are_written():
    menus = [BlockMenu([Choice(0.1, 0, None)], [Choice(0.2, 0, None), Choice(0.1, 1, None)], None)]
    assert allocate(menus, 0.3)[0][1].cost == 0.2, "in binary 0.1 + 0.2 is above 0.3"
