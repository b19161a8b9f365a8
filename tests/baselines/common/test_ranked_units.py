"""Budgets spent by rank: what stays, in which groups, and within the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgevit.baselines.common.importance import Scores, unit_shapes
from edgevit.baselines.common.ranked import Units, _Counts, rank, top
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.errors import BudgetError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms

BASE = [BlockDims(4, 32, 32, 256)] * 3
STAGE = NetworkStage(64, 17, attention_terms(biases=True, vectors=4), ffn_terms(1, biases=True, vectors=4))
GEOMETRY = Geometry((STAGE,), 16, 192, 10, 1, 1000)


def geometry_at(width: int) -> Geometry:
    return GEOMETRY.with_embed(width)


def scores(favoured: int | None = None) -> Scores:
    """Random scores; those of one block 1000 times as high."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

    blocks = [{axis: drawn(*shape) for axis, shape in unit_shapes(dims).items()} for dims in BASE]
    if favoured is not None:
        blocks[favoured] = {axis: 1000 * t for axis, t in blocks[favoured].items()}
    return Scores(blocks, drawn(64))


def budget(rate: float) -> Budget:
    whole = GEOMETRY.macs(BASE)
    return Budget("macs", int(whole * (1 - rate)), whole, f"rate {rate}")


def spent(found, rate: float) -> float:  # type: ignore[no-untyped-def]
    return geometry_at(found.embed).macs(found.dims) / budget(rate).limit


ALL = Units("isomorphic", "both", True)


def test_the_highest_stay_and_of_equal_ones_the_first() -> None:
    assert top(torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0]), 3).tolist() == [1, 2, 4]
    assert top(torch.tensor([[1.0, 1.0], [0.0, 5.0]]), 1).tolist() == [[0], [1]]


@pytest.mark.quick("isomorphic-fused", "uniform-fused")
@pytest.mark.parametrize(
    ("grouping", "shape"), [*(("isomorphic", shape) for shape in POLICIES), ("uniform", "fused"), ("global", "free")]
)
def test_the_budget_is_met_and_used(grouping, shape):  # type: ignore[no-untyped-def]
    for attention in ("widths", "heads", "both"):
        for embed in (False, True):
            units = Units(grouping, attention, embed)
            found = rank(scores(), BASE, geometry_at, 64, budget(0.6), POLICIES[shape], units)
            assert 0.93 < spent(found, 0.6) <= 1, (units, found.dims)
            assert (found.embed < 64) == embed or grouping == "global"
            fewer = any(d.heads < 4 for d in found.dims)
            assert not fewer if attention == "widths" else (fewer or embed or grouping == "global")
            assert [len(heads) for heads in found.heads] == [d.heads for d in found.dims]


def test_uniform_ignores_scores_isomorphic_follows_them_over_blocks() -> None:
    policy, units = POLICIES["free"], Units("uniform", "widths", False)
    alike = rank(scores(1), BASE, geometry_at, 64, budget(0.6), policy, units)
    assert max(d.ffn for d in alike.dims) - min(d.ffn for d in alike.dims) <= 1
    ranked = rank(scores(1), BASE, geometry_at, 64, budget(0.6), policy, replace(units, grouping="isomorphic"))
    assert ranked.dims[1].ffn == 256 and ranked.dims[1].qk == 32 and ranked.dims[0].ffn < alike.dims[0].ffn


def test_isomorphic_takes_the_same_share_of_every_kind_where_global_takes_the_cheap_one() -> None:
    few = scores()
    worthless_attention = Scores([{**b, "qk": b["qk"] / 1e6, "vo": b["vo"] / 1e6} for b in few.blocks], few.embed)
    shares = []
    for grouping in ("isomorphic", "global"):
        units = Units(grouping, "widths", False)  # type: ignore[arg-type]
        dims = rank(worthless_attention, BASE, geometry_at, 64, budget(0.4), POLICIES["free"], units).dims
        shares.append([sum(getattr(d, name) for d in dims) / sum(getattr(d, name) for d in BASE)
                       for name in ("qk", "ffn")])  # fmt: skip
    assert shares[0][0] == pytest.approx(shares[0][1], abs=0.05)
    assert shares[1][0] < 0.2 and shares[1][1] > shares[0][1] + 0.2


def test_a_unit_costs_the_macs_that_go_with_it() -> None:
    costs = {key: curve.unit_cost for key, curve in _Counts(scores(), BASE, GEOMETRY, ALL).curves.items()}

    def saved(**fewer: int) -> int:
        return GEOMETRY.macs(BASE) - GEOMETRY.macs([replace(BASE[0], **fewer), *BASE[1:]])

    assert costs["qk", 0] == saved(qk=31) and costs["vo", 0] == saved(vo=31) and costs["ffn", 0] == saved(ffn=255)
    assert costs["heads", 0] == saved(heads=3)
    assert costs["embed", 0] == GEOMETRY.macs(BASE) - geometry_at(63).macs(BASE)


def test_kept_heads_are_those_of_the_highest_scores() -> None:
    told = scores()
    blocks = [{**b, "heads": torch.tensor([0.0, 3.0, 1.0, 2.0], dtype=torch.float64)} for b in told.blocks]
    found = rank(Scores(blocks, told.embed), BASE, geometry_at, 64, budget(0.7), POLICIES["fused"], ALL)
    assert found.embed % 16 == 0
    for heads in found.heads:
        assert heads == tuple(sorted((1, 3, 2, 0)[: len(heads)])) and len(heads) >= 2


def test_what_is_out_of_reach_is_refused_with_what_is_not() -> None:
    with pytest.raises(BudgetError, match="reaches no less than"):
        rank(scores(), BASE, geometry_at, 64, budget(0.93), POLICIES["fused"], Units("uniform", "widths", False))
    found = rank(scores(), BASE, geometry_at, 64, budget(0.93), POLICIES["fused"], ALL)
    assert spent(found, 0.93) <= 1
