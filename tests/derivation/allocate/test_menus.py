"""Menus hold what nothing beats: the heads that lose least go first, neurons in the order of what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgevit.derivation.allocate.menus import attention_menu, ffn_menu, tails
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.plan import AttentionPlan
from edgevit.network.anatomy import BlockDims


def _sensitivity(heads: list[float]) -> Sensitivity:
    generator = torch.Generator().manual_seed(0)
    falling = torch.rand(len(heads), 32, generator=generator, dtype=torch.float64).sort(-1, descending=True).values
    nothing = torch.zeros(1)
    return Sensitivity(falling / 100, falling / 50, torch.tensor(heads).double(), nothing, nothing, nothing)


def test_tails_are_what_is_lost_at_each_width() -> None:
    assert tails(torch.tensor([[3.0, 2.0, 1.0]])).tolist() == [[6.0, 3.0, 1.0, 0.0]]


def test_the_head_that_loses_least_goes_first_and_two_stay_where_attention_is_to_be_fused() -> None:
    felt = _sensitivity([5.0, 1.0, 9.0, 7.0])
    dims = BlockDims(4, 32, 32, 64)
    menu = attention_menu(dims, felt, make_policy("fused"), lambda h, q, v: 1000 * h + q + v, drop_heads=True)
    assert {len(c.value.heads) for c in menu} == {2, 3, 4}
    whole = next(c for c in menu if c.value == AttentionPlan((0, 1, 2, 3), (32, 32)))
    assert whole.loss == 0
    (without_one,) = (c for c in menu if len(c.value.heads) == 3 and c.value.widths[0] == 32)
    assert without_one.value.heads == (0, 2, 3) and without_one.loss == pytest.approx(1.0)
    (narrow,) = (c for c in menu if len(c.value.heads) == 4 and c.value.widths[0] == 16)
    assert narrow.loss == pytest.approx(float(felt.qk[:, 16:].sum() + felt.vo[:, 16:].sum()))
    free = attention_menu(dims, felt, make_policy("free"), _sizes, drop_heads=True)
    assert {len(c.value.heads) for c in free} == {1, 2, 3, 4}
    assert {len(c.value.heads) for c in attention_menu(dims, felt, make_policy("paper"), _sizes, drop_heads=False)} == {
        4
    }


def _sizes(heads: int, qk: torch.Tensor, vo: torch.Tensor) -> torch.Tensor:
    return heads * (qk + vo)


def test_a_menu_has_all_that_nothing_beats_and_nothing_else() -> None:
    torch.manual_seed(0)
    felt, dims = _sensitivity([5.0, 1.0, 9.0, 7.0]), BlockDims(4, 32, 32, 64)
    felt = replace(felt, qk=torch.rand(4, 32).double(), vo=torch.rand(4, 32).double())
    menu = attention_menu(dims, felt, make_policy("free"), _sizes, drop_heads=True)
    assert [c.cost for c in menu] == sorted({c.cost for c in menu}) and 20 < len(menu) < 300
    assert [c.loss for c in menu] == sorted({c.loss for c in menu}, reverse=True)
    lost = {(q, v): felt.qk[:, q:].sum(1) + felt.vo[:, v:].sum(1) for q in range(1, 33) for v in range(1, 33)}
    for (q, v), narrower in lost.items():
        saved = (felt.heads - narrower).sort(descending=True).values
        for heads in range(1, 5):
            loss = max(float(felt.heads.sum() - saved[:heads].sum()), 0.0)
            assert any(c.cost <= heads * (q + v) and c.loss <= loss + 1e-12 for c in menu)


def test_an_ffn_loses_what_the_neurons_that_go_cost() -> None:
    menu = ffn_menu(torch.arange(1.0, 33.0), make_policy("fused"), lambda w: 10.0 * w)
    assert [(c.value, c.cost, c.loss) for c in menu] == [
        (8, 80.0, float(sum(range(1, 25)))), (16, 160.0, float(sum(range(1, 17)))),
        (24, 240.0, float(sum(range(1, 9)))), (32, 320.0, 0.0),
    ]  # fmt: skip


def test_what_is_frozen_is_in_a_menu_as_it_is() -> None:
    dims, felt = BlockDims(3, 32, 32, 64), _sensitivity([1.0, 2.0, 3.0])
    free = attention_menu(dims, felt, make_policy("paper"), _sizes, drop_heads=True)
    assert {c.value.widths[0] for c in free} > {dims.qk} and {len(c.value.heads) for c in free} > {3}
    held = attention_menu(dims, felt, make_policy("paper"), _sizes, drop_heads=True, frozen={"qk", "heads"})
    assert {c.value.widths[0] for c in held} == {dims.qk} and {len(c.value.heads) for c in held} == {3}
    assert {c.value.widths[1] for c in held} > {dims.vo}
    tied = attention_menu(dims, felt, make_policy("fused"), _sizes, drop_heads=False, frozen={"vo"})
    assert [c.value.widths for c in tied] == [(dims.qk, dims.vo)]
    (whole,) = ffn_menu(torch.arange(1.0, 65.0), make_policy("fused"), float, frozen={"ffn"})
    assert whole.value == 64 and whole.loss == 0
