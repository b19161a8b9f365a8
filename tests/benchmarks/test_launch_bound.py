"""The made-up table of a GPU that one image is far from filling, and what is told of budgets by it."""

from __future__ import annotations

import json
from pathlib import Path

import launch_bound
import pytest
import timm

from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.prices import BlockDims
from edgevit.network.families import vit


def test_the_base_takes_a_millisecond_by_the_table_and_narrow_blocks_nearly_as_much(tmp_path: Path) -> None:
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 2}
    network = timm.create_model("vit_tiny_patch16_224", **args)
    blocks, file = [block.dims for block in vit.read(network)], tmp_path / "table.json"
    file.write_text(json.dumps(launch_bound.cost_table(blocks, vit.geometry(network))))
    prices = load_cost_table(file).in_quantity("ms")
    assert prices.base == pytest.approx(1, abs=1e-6)
    narrow = [BlockDims(1, 16, 16, 8)] * 3
    fewer = blocks[:1]

    def taken(dims: list[BlockDims]) -> float:
        each = (prices.attention(0, d.heads, d.qk, d.vo) + prices.ffn(0, d.ffn) for d in dims)
        return float(prices.fixed + sum(each))

    assert 0.9 < taken(narrow) < 0.95 and taken(fewer) == pytest.approx(1 / 7 + 2 / 7, abs=1e-6)


def test_the_section_has_both_variants_side_by_side() -> None:
    row = {
        "task": 5, "share": 0.4, "seed": 42, "variant": "forge", "kind": "closed", "derived": 0.93,
        "base_restricted": 0.95, "sites": [3, 2], "versions": {"edgevit": "0.1.0 (abc)"},
    }  # fmt: skip
    other = {**row, "variant": "without the search", "derived": 0.9, "sites": [1, 4]}
    text = launch_bound.section({"rows": [row, {**row, "seed": 43, "derived": 0.94}, other]})
    assert "| closed form, 0.4, 5 classes |" in text and "| 3 + 2 |" in text and "| 1 + 4 |" in text
    assert launch_bound.section(None) == launch_bound.section({"rows": []}) == ""
