"""Numbers of tokens that fill tiles, and why one line for each site gives the costs with fewer tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgevit.derivation.allocate.policy import tile_counts
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms

STAGE = NetworkStage(192, 197, attention_terms(biases=True, vectors=0), ffn_terms(1, biases=True, vectors=0))
TINY = Geometry((STAGE,), 196, 768, 10, 1, 0)


@pytest.mark.parametrize(
    ("tokens", "patches", "counts"),
    [(197, 196, [64, 128, 192]), (37, 36, [16, 32]), (17, 16, [8, 16]), (25, 16, [16, 24]), (128, 127, [64])],
)
def test_counts_fill_tiles_and_leave_a_patch(tokens: int, patches: int, counts: list[int]) -> None:
    assert tile_counts(replace(TINY, stages=(replace(STAGE, tokens=tokens),), patches=patches)) == counts


@pytest.mark.parametrize("tokens", [64, 128, 192])
def test_in_macs_one_slope_for_each_site_is_exact(tokens: int) -> None:
    def macs(dims: BlockDims, tokens: int) -> int:
        placed = TINY.place(dims, tokens)
        return placed.cost("macs") - sum(placed.fixed_cost(kind, "macs") for kind in dims.sites)

    attentions = [BlockDims(h, w, w, 0) for h in (1, 2, 3) for w in (16, 40, 64)]
    for sites in (attentions, [BlockDims(0, 0, 0, n) for n in (8, 100, 768)]):
        slopes = {round(macs(dims, tokens) / macs(dims, 197), 12) for dims in sites}
        assert len(slopes) == 1 and 0 < slopes.pop() < 1
