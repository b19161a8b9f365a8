"""Entries of a cost table: what each says in either quantity, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from edgevit.derivation.allocate.listed_costs import AttentionCost, SiteCosts, TokenCosts
from edgevit.derivation.allocate.tokens import Law


def of_tokens(**more: Any) -> TokenCosts:
    law = {"ms": 0.1, "share_ms": 0.5, "mj": 1.0, "share_mj": 0.6}
    return TokenCosts.model_validate({"tokens": 64, "attention": law, "ffn": law, "cut_mj": 0.3, **more})


def test_a_number_of_tokens_has_a_law_for_each_site_in_either_quantity() -> None:
    ms, mj = (of_tokens().in_quantity(quantity) for quantity in ("ms", "mj"))  # type: ignore[arg-type]
    assert (ms.tokens, ms.cut, ms.attention, mj.cut, mj.ffn) == (64, 0.0, Law(0.1, 0.5), 0.3, Law(1.0, 0.6))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, True),
        ({"attention": {"share_ms": 0.5}, "ffn": {"share_ms": 0.5}, "cut_mj": None}, False),
        ({"attention": {"share_ms": 0.5}}, None),
        ({"attention": {"share_ms": 0.5}, "ffn": {"share_ms": 0.5}}, None),
    ],
)
def test_energy_is_listed_of_all_or_of_nothing(more: dict[str, Any], expected: bool | None) -> None:
    assert of_tokens(**more).has_energy is expected


@pytest.mark.parametrize("law", [{"share_ms": 0}, {"ms": -1, "share_ms": 1}, {"ms": 1}, {"share_ms": float("inf")}])
def test_a_law_is_no_less_than_nothing_and_has_a_slope(law: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        of_tokens(ffn=law)


def test_an_attention_has_one_width_or_two_and_a_block_is_told_where_it_contradicts_itself() -> None:
    assert AttentionCost(heads=2, width=16, ms=1).sizes == AttentionCost(heads=2, qk=16, vo=16, ms=1).sizes
    with pytest.raises(ValidationError, match="needs width, or qk and vo"):
        AttentionCost(heads=2, ms=1)
    site = {"attention": [{"heads": 2, "width": 16, "ms": 0.1}], "ffn": [{"width": 8, "ms": 0.1}], "block_ms": -0.2}
    assert "has -0.2 as block_ms" in str(SiteCosts.model_validate(site).fault(None, "linear"))
