"""Fewer tokens: counts that fill tiles, and what sites take that are given so many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.derivation.allocate.tokens import Law, TokenPrices, of_fewer, tile_counts
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry, SiteCostTerms

TINY = Geometry(192, 197, 196, 768, 10, 1, 0, SiteCostTerms(3, True, 0), SiteCostTerms(1, True, 0))
COSTS = np.array([0.1, 1.0, 2.0])
LAWS = [(128, Law(0.04, 0.6)), (64, Law(0.06, 0.3))]


@pytest.mark.parametrize(
    ("tokens", "patches", "counts"),
    [(197, 196, [64, 128, 192]), (37, 36, [16, 32]), (17, 16, [8, 16]), (25, 16, [16, 24]), (128, 127, [64])],
)
def test_counts_fill_tiles_and_leave_a_patch(tokens: int, patches: int, counts: list[int]) -> None:
    assert tile_counts(replace(TINY, tokens=tokens, patches=patches)) == counts


@pytest.mark.parametrize("tokens", [64, 128, 192])
def test_in_macs_one_slope_for_each_site_is_exact(tokens: int) -> None:
    def macs(dims: BlockDims, tokens: int) -> int:
        return TINY.at(tokens).block_cost(dims, "macs")

    attentions = [BlockDims(h, w, w, 0) for h in (1, 2, 3) for w in (16, 40, 64)]
    for sites in (attentions, [BlockDims(0, 0, 0, n) for n in (8, 100, 768)]):
        slopes = {round(macs(dims, tokens) / macs(dims, 197), 12) for dims in sites}
        assert len(slopes) == 1 and 0 < slopes.pop() < 1


def test_what_is_listed_is_met_and_between_it_costs_are_on_the_line_or_as_above() -> None:
    def at(tokens: int, between: str = "linear") -> list[float]:
        return of_fewer(COSTS, LAWS, 197, tokens, between).tolist()  # type: ignore[arg-type]

    assert at(197) == COSTS.tolist() and at(128) == pytest.approx([0.1, 0.64, 1.24])
    assert at(64) == pytest.approx([0.09, 0.36, 0.66]) == at(5), "what is fewer than all that are listed"
    assert at(96) == pytest.approx([0.095, 0.5, 0.95])
    assert at(96, "above") == at(128) and at(129, "above") == COSTS.tolist()


laws = st.builds(Law, st.floats(0, 2), st.floats(1e-6, 2))


@given(first=laws, second=laws, at=st.lists(st.integers(1, 197), min_size=2, max_size=2))
def test_nothing_takes_more_than_with_more_tokens_or_less_than_something_smaller(
    first: Law, second: Law, at: list[int]
) -> None:
    fewer, more = (of_fewer(COSTS, [(128, first), (64, second)], 197, n, "linear") for n in sorted(at))
    assert (fewer <= more + 1e-12).all() and (np.diff(fewer) >= -1e-12).all() and (fewer > 0).all()


def test_what_is_listed_has_a_law_for_either_site() -> None:
    listed = TokenPrices(64, 0.01, Law(0, 0.2), Law(0, 0.3))
    assert (listed.attention.slope, listed.ffn.slope) == (0.2, 0.3)
