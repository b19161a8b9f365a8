"""A cost table in one quantity: sizes that are listed, sizes between them, and blocks that lost a site."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.derivation.allocate.prices import BlockPrices, Prices
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims

HEADS, WIDTHS, NEURONS = (1, 2, 4), (16, 32, 64), (8, 64, 256)


def attention(heads, width):
    return 0.3 + 0.02 * heads * width + 0.1 * heads  # bilinear: what is interpolated is exact


def prices(between="linear", together=-0.05):
    sizes = [(h, w, w) for h in HEADS for w in WIDTHS]
    block = BlockPrices(
        np.array(sizes), np.array([attention(h, w) for h, w, _ in sizes]),
        np.array(NEURONS), np.array([1.0, 2.0, 10.0]), together, between,
    )  # fmt: skip
    return Prices("ms", 0.5, (block,), (BlockDims(4, 64, 64, 256),) * 3, 256)


@given(heads=st.integers(1, 4), qk=st.integers(16, 64), vo=st.integers(16, 64))
def test_sizes_between_two_are_interpolated_in_heads_and_in_the_mean_of_both_widths(heads, qk, vo):
    assert prices().attention(2, heads, qk, vo) == pytest.approx(attention(heads, (qk + vo) / 2))


def test_neurons_are_interpolated_and_nothing_is_cheaper_than_the_smallest():
    p = prices()
    assert [p.ffn(0, w) for w in (8, 36, 64, 160, 256)] == [1.0, 1.5, 2.0, 6.0, 10.0]
    assert p.ffn(0, 1) == 1.0 and p.attention(0, 1, 4, 8) == attention(1, 16)
    above = prices("above")
    assert above.ffn(0, 9) == 2.0 and above.attention(0, 3, 17, 12) == attention(4, 32)


def test_what_is_larger_than_anything_listed_is_refused():
    for table in (prices(), prices("above")):
        with pytest.raises(CostTableError, match="block 2 lists nothing as wide as FFN width 257; measure that as we"):
            table.ffn(2, 257)
        with pytest.raises(CostTableError, match="nothing as wide as attention of 5 heads, QK 16, VO 16"):
            table.attention(0, 5, 16, 16)
        with pytest.raises(CostTableError, match="nothing as wide as attention of 4 heads, QK 64, VO 65"):
            table.attention(0, 4, 64, 65)


def test_a_block_without_a_site_costs_the_other_and_one_with_both_costs_more_or_less_than_their_sum():
    p = prices()
    whole, mixing, thinking = BlockDims(2, 32, 32, 64), BlockDims(2, 32, 32, 0), BlockDims(0, 0, 0, 64)
    alone = attention(2, 32)
    assert [p.block(1, dims) for dims in (whole, mixing, thinking)] == pytest.approx([alone + 2 - 0.05, alone, 2])
    assert p.cost([whole, thinking], kept=[0, 2]) == pytest.approx(0.5 + alone + 2 - 0.05 + 2)
    assert sum(p.parts([whole, thinking], kept=[0, 2])) == pytest.approx(p.cost([whole, thinking], kept=[0, 2]))
    said = "FFN 4 ms, attention 1.78 ms, outside the blocks 0.5 ms, blocks beyond their attention and FFN -0.05 ms"
    assert p.made_of([whole, thinking], kept=[0, 2]) == said
    assert p.base == pytest.approx(0.5 + 3 * (attention(4, 64) + 10 - 0.05))
