"""Latency by axis: what each axis leaves of a DeiT, and its table."""

from __future__ import annotations

from itertools import pairwise

import axes
import pytest

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


def test_the_section_shows_latency_over_macs_and_what_is_refused() -> None:
    blocks = [{"heads": 3, "qk": 16, "vo": 16, "ffn": 100, "tokens": 0}, {"heads": 0, "qk": 0, "ffn": 300, "tokens": 8}]
    row = {
        "model": "deit_tiny", "rate": 0.8, "axis": "depth", "macs": 0.2, "embed": 192, "blocks": blocks, "batch": 1,
        "ratio": 0.25, "interval": [0.24, 0.26], "rounds": 10, "threads": 1, "load_average": 0.5, "where": "a test",
    }  # fmt: skip
    refused = {"model": "deit_tiny", "rate": 0.9, "axis": "tokens", "refused": "nothing between"}
    text = axes.section({"rows": [row, {**row, "batch": 8, "ratio": 0.2, "interval": [None, None]}, refused]})
    assert "| depth, 0.8 | 0.200 | 2 blocks of 192, 24 QK, 200 neurons, 8 tokens at last | " in text
    assert "| 0.250 (0.240 to 0.260) | 1.25 | 0.200 | 1.00 |" in text
    assert "| tokens, 0.9 |  | nothing between |" in text
    assert axes.section(None) == axes.section({"rows": [refused]}) == ""
