"""Costs at listed sizes, between them, at other embeddings and with fewer tokens; and of blocks that lost a site."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_tables import rows, table

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.prices import Prices
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims

HEADS, WIDTHS = (1, 2, 4), (16, 32, 64)
FFN = {8: 1.0, 64: 2.0, 256: 10.0}
BASE = {"depth": 3, "blocks": [{"heads": 4, "qk": 64, "vo": 64, "ffn": 256}]}


def attention(heads: int, width: float) -> float:
    return 0.3 + 0.02 * heads * width + 0.1 * heads  # bilinear: interpolation is exact


def sites(share: float = 1.0) -> Any:
    grid = {(h, w): share * attention(h, w) for h in HEADS for w in WIDTHS}
    return grid, {width: share * cost for width, cost in FFN.items()}


def prices(*more: dict[str, Any], block: float = -0.05) -> Prices:
    costs = [*rows(0.5, *sites(), block=block), *more]
    return CostTable.model_validate(table(costs, base=BASE)).in_quantity("ms")


@given(heads=st.integers(1, 4), qk=st.integers(16, 64), vo=st.integers(16, 64))
def test_costs_between_sizes_are_interpolated_in_heads_and_in_the_mean_of_both_widths(
    heads: int, qk: int, vo: int
) -> None:
    assert prices().attention(heads, qk, vo) == pytest.approx(attention(heads, (qk + vo) / 2))


def test_neurons_are_interpolated_and_below_the_smallest_size_costs_are_constant() -> None:
    p = prices()
    assert [p.ffn(w) for w in (8, 36, 64, 160, 256)] == [1.0, 1.5, 2.0, 6.0, 10.0]
    assert p.ffn(1) == 1.0 and p.attention(1, 4, 8) == attention(1, 16)


def test_sizes_above_the_largest_are_refused() -> None:
    with pytest.raises(CostTableError, match="nothing as large as an FFN of width 257; measure that as well"):
        prices().ffn(257)
    with pytest.raises(CostTableError, match="nothing as large as an attention of 5 heads, QK 16, VO 16"):
        prices().attention(5, 16, 16)
    with pytest.raises(CostTableError, match="an attention of 4 heads, QK 64, VO 65"):
        prices().attention(4, 64, 65)


def test_a_block_without_a_site_costs_the_other_and_one_with_both_costs_more_or_less_than_their_sum() -> None:
    p = prices()
    whole, mixing, thinking = BlockDims(2, 32, 32, 64), BlockDims(2, 32, 32, 0), BlockDims(0, 0, 0, 64)
    alone = attention(2, 32)
    assert [p.block(dims) for dims in (whole, mixing, thinking)] == pytest.approx([alone + 2 - 0.05, alone, 2])
    assert p.cost([whole, thinking]) == pytest.approx(0.5 + alone + 2 - 0.05 + 2)
    assert sum(p.parts([whole, thinking])) == pytest.approx(p.cost([whole, thinking]))
    text = "FFN 4 ms, attention 1.78 ms, outside the blocks 0.5 ms, blocks beyond their attention and FFN -0.05 ms"
    assert p.breakdown([whole, thinking]) == text
    assert p.base == pytest.approx(0.5 + 3 * (attention(4, 64) + 10 - 0.05))


def test_costs_between_two_embeddings_are_interpolated() -> None:
    whole = prices(*rows(0.1, *sites(0.5), block=-0.01, embed=32))
    assert whole.at(64) is whole and whole.embeds == [32, 64]
    below, between = whole.at(32), whole.at(48)
    assert (below.fixed, between.fixed, between.embed) == (0.1, 0.3, 48)
    assert below.ffn(64) == 1.0 and between.ffn(64) == 1.5 and between.together == pytest.approx(-0.03)
    assert between.attention(2, 32, 32) == pytest.approx(0.75 * attention(2, 32))
    with pytest.raises(CostTableError, match="it lists embeddings of 32 to 64, and this one has 31; measure that"):
        whole.at(31)
    with pytest.raises(CostTableError, match="embeddings of 64 to 64, and this one has 48"):
        prices().at(48)


def test_blocks_that_get_fewer_tokens_cost_less_and_the_cut_costs_more() -> None:
    cuts = [{"part": "cut", "tokens": n, "ms": 0.02} for n in (16, 8)]
    p = prices(*rows(None, *sites(0.9), tokens=16), *rows(None, *sites(0.4), tokens=8), *cuts)
    assert p.token_counts == [8, 16, 17] and p.at(64, 17) is p
    assert [p.at(64, n).ffn(256) for n in (16, 12, 8, 5)] == pytest.approx([9.0, 6.5, 4.0, 4.0])
    whole, cut = BlockDims(2, 32, 32, 256), BlockDims(2, 32, 32, 256, tokens=8)
    behind = p.at(64, 8).block(whole)
    assert behind == pytest.approx(0.4 * (attention(2, 32) + 10) - 0.05)
    assert p.cost([cut, whole]) == pytest.approx(p.fixed + p.block(whole) + 0.02 + behind)
    assert sum(p.parts([cut, whole])) == pytest.approx(p.cost([cut, whole]))
    with pytest.raises(CostTableError, match=r"get 17 tokens, and these get 8; `edgevit cost --tokens`"):
        prices().cost([cut, whole])


def test_a_block_saves_no_more_than_its_smallest_attention() -> None:
    p = prices(*rows(None, *sites(0.1), tokens=8), block=-0.5)
    assert p.together == -0.5 and p.saved == pytest.approx(0.5 / attention(1, 16))
    assert p.at(64, 8).together == pytest.approx(-0.1 * attention(1, 16))


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 64), st.integers(1, 256), st.integers(32, 64))
def test_no_size_costs_more_than_a_larger_one(heads: int, qk: int, vo: int, ffn: int, embed: int) -> None:
    p = prices(*rows(0.1, *sites(0.5), block=-0.01, embed=32)).at(embed)
    more = BlockDims(4, min(qk + 5, 64), min(vo + 3, 64), min(ffn + 40, 256))
    assert p.block(BlockDims(heads, qk, vo, ffn)) <= p.block(more) <= p.block(BlockDims(4, 64, 64, 256))
