"""Costs of every way to make a block are what the model costs that is made so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from some_tables import rows, table

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.menus import SiteCosts, site_costs
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.methods.forge.curves import BlockCurves
from edgevit.derivation.methods.forge.menus import Removable, block_menu
from edgevit.network.anatomy import BlockDims

DIMS = BlockDims(2, 32, 32, 256)


def _table() -> CostTable:
    attention = {(h, w): 0.02 * h * w / 16 for h in (1, 2) for w in (16, 24, 32)}
    ffn = {w: w / 256 for w in range(8, 257, 8)}
    return CostTable.model_validate(table(rows(0.1, attention, ffn, block=-0.01)))


def _costs(budget: Any, geometry: Any) -> SiteCosts:
    return site_costs(budget, geometry, geometry.placed([DIMS])[0])


def _known() -> Any:
    class Sensitivities:
        qk, vo = torch.rand(2, 32).double(), torch.rand(2, 32).double()
        heads = vo.sum(1)

    class Known:
        sensitivity, ffn_losses = Sensitivities(), torch.rand(256).double()
        block_loss, site_losses = torch.tensor([50.0]), torch.tensor([20.0, 30.0])

    known: BlockCurves = Known()  # type: ignore[assignment]
    return known


@pytest.mark.parametrize("quantity", ["rate", "params", "ms"])
def test_every_way_costs_what_its_model_does(quantity: str, small_vit: Any) -> None:
    geometry, base = small_vit().geometry, [DIMS, DIMS]
    asked: dict[str, Any] = {"rate": {"rate": 0.5}, "params": {"params": 50_000}, "ms": {"ms": 1.0, "table": _table()}}
    macs, params = geometry.macs(base), geometry.params(base)
    budget = make_budget(macs, params, **asked[quantity])
    menu = block_menu(
        DIMS,
        _known(),
        make_policy("fused"),
        _costs(budget, geometry),
        Removable(True, True, True),
        set(),
    )
    with_first = budget.cost([DIMS], geometry)

    def made(attention: Any, ffn: Any) -> BlockDims:
        alone = BlockDims(0, 0, 0, 0 if ffn is None else ffn.value)
        return alone if attention is None else alone.with_sizes(attention.value.sizes)

    pairs = [(menu.attention[0], menu.ffn[3]), (menu.attention[-1], menu.ffn[-1])]
    for attention, ffn in [*pairs, (menu.attention_alone[1], None), (None, menu.ffn_alone[2])]:
        cost = sum(choice.cost for choice in (attention, ffn) if choice is not None)
        whole = budget.cost([DIMS, made(attention, ffn)], geometry)
        assert cost == pytest.approx(whole - with_first, abs=1e-9)
    assert menu.dropped == 50
    assert menu.attention_alone[-1].loss == menu.attention[-1].loss + 30, "without the FFN"
    assert menu.ffn_alone[-1].loss == menu.ffn[-1].loss + 20


def test_what_is_frozen_or_not_asked_for_stays(small_vit: Any) -> None:
    geometry = small_vit().geometry
    budget = make_budget(geometry.macs([DIMS] * 2), 1, rate=0.5)
    costs, known, policy = _costs(budget, geometry), _known(), make_policy("paper")
    for goes, frozen in ((Removable(True, False, False), set()), (Removable(True, True, True), {"site", "block"})):
        menu = block_menu(DIMS, known, policy, costs, goes, frozen)
        assert menu.dropped is None and not menu.attention_alone and not menu.ffn_alone


def test_a_block_that_is_to_contain_another_has_its_sites_and_no_size_below(small_vit: Any) -> None:
    geometry = small_vit().geometry
    budget = make_budget(1, 1, ms=1.0, table=_table())
    costs, known = _costs(budget, geometry), _known()

    def menu(at_least: BlockDims | None) -> Any:
        return block_menu(DIMS, known, make_policy("fused"), costs, Removable(True, True, True), set(), at_least)

    whole, grown = menu(None), menu(BlockDims(2, 24, 24, 128))
    assert {c.value.widths[0] for c in whole.attention} == {16, 24, 32} and whole.dropped is not None
    assert {c.value.widths[0] for c in grown.attention} == {24, 32} and min(c.value for c in grown.ffn) == 128
    assert grown.dropped is None and not grown.attention_alone and not grown.ffn_alone
    only_ffn, only_attention = menu(BlockDims(0, 0, 0, 64)), menu(BlockDims(2, 32, 32, 0))
    assert not only_ffn.ffn and not only_ffn.attention_alone and min(c.value for c in only_ffn.ffn_alone) == 64
    assert [c.value.widths[0] for c in only_attention.attention_alone] == [32] and not only_attention.ffn_alone
