"""Latency by axis: what each axis leaves of a DeiT."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.product import axes
from edgevit.errors import BudgetError
from edgevit.jobs.suite.suite import shape_of

BASE, GEOMETRY = shape_of("tiny")


@pytest.mark.parametrize("axis", axes.PLANNED)
def test_an_axis_alone_leaves_about_a_fifth_of_the_macs(axis: str) -> None:
    blocks, embed = axes.PLANNED[axis](BASE, GEOMETRY, 0.8)
    left = GEOMETRY.with_embed(embed).macs(blocks) / GEOMETRY.macs(BASE)
    assert left == pytest.approx(0.2, rel=axes.NEAR)
    assert (len(blocks) < len(BASE)) == (axis in ("depth", "embedding and depth"))
    assert (embed < GEOMETRY.embed) == (axis == "embedding and depth")
    assert any(block.tokens for block in blocks) == (axis == "tokens")
    assert all(a.ffn == b.ffn for a, b in pairwise(blocks)) or axis == "widths"


def test_an_axis_that_ends_before_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"nothing between leaves 0\.1 of the MACs: the nearest leaves 0\.11"):
        axes.tokens(BASE, GEOMETRY, 0.9)
