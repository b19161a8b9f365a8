"""Tokens as an axis of forge's budget: the token schedules, the worthwhile ones, and models with fewer tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained
from small_base import derive, write_checkpoint, write_cost_table

import edgevit
from edgevit.data.task import open_task
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.embedding import Slices
from edgevit.derivation.methods.forge import choose
from edgevit.derivation.methods.forge.schedules import containing, reason_against, schedules, with_schedule, worthwhile
from edgevit.errors import BudgetError, CostTableError
from edgevit.network.anatomy import BlockDims
from edgevit.network.model import describe

FEW: dict[str, Any] = {"calibration_images": 96, "sensitivity_images": 32, "cut_tokens": "predicted"}
MACS = 140_000  # of the small base's 1.8 M


@pytest.mark.parametrize(
    ("args", "depth", "counts", "places"),
    [
        ({}, 6, {8, 16}, {2, 3, 4}),  # 17 tokens
        ({"img_size": 48}, 12, {16, 32}, {5, 7, 9}),  # 37
        ({"img_size": 112}, 12, {64, 128, 192}, {5, 7, 9}),  # 197
        ({"reg_tokens": 8}, 2, {16, 24}, {0}),  # of 25 tokens 9 always stay
    ],
)
def test_counts_fill_tiles_and_no_token_comes_back(
    small_vit: Any, args: dict[str, Any], depth: int, counts: set[int], places: set[int]
) -> None:
    geometry = small_vit(depth=depth, embed_dim=16, **args).geometry
    whole, *others = schedules(geometry, depth)
    assert not any(whole) and len(set(others)) == len(others) > 0
    assert {n for schedule in others for n in schedule} == {0, *counts}
    assert {i for schedule in others for i, n in enumerate(schedule) if n} == places
    for schedule in others:
        passed = [n for n in schedule if n]
        assert passed == sorted(set(passed), reverse=True) and 1 <= len(passed) <= 2


@pytest.mark.parametrize(("token_weight", "steps", "leave"), [(1.0, 5, False), (1.0, 0, True), (0.0, 5, True)])
def test_where_no_token_always_stays_none_leave_if_training_is_to_compare_them(
    small_vit: Any, tmp_path: Path, token_weight: float, steps: int, leave: bool
) -> None:
    args = {"depth": 2, "class_token": False, "global_pool": "avg"}
    base = describe(small_vit(**args), "vit_tiny_patch16_224", args)
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path)
    problem = replace(
        problem, training=replace(problem.training, steps=steps, teacher="restricted", token_weight=token_weight)
    )
    reason = reason_against(problem)
    assert reason is None if leave else reason is not None and "add --token-weight 0" in reason


def test_a_schedule_that_another_beats_in_both_is_passed_over(small_vit: Any, tmp_path: Path) -> None:
    base = describe(small_vit(depth=6), "vit_tiny_patch16_224", {"depth": 6})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path)
    found = worthwhile(problem, Slices(problem, 32, 32))
    geometry, dims = problem.network.geometry, list(problem.network.dims)
    macs = [geometry.macs(with_schedule(dims, schedule)) for schedule, _ in found]
    losses = [nats for _, nats in found]
    assert found[0] == ((0,) * 6, 0.0) and 2 < len(found) < len(schedules(geometry, 6))
    assert macs == sorted(macs, reverse=True) and losses == sorted(losses) and min(losses[1:]) > 0


def test_tokens_leave_within_the_budget_and_the_model_loads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate that nothing else reaches."""
    monkeypatch.setattr(choose, "LITTLE", 0.0)
    checkpoint = write_checkpoint(tmp_path)
    given: dict[str, Any] = {"method": "forge", "rate": None, "macs": MACS, "shape": "fused"}
    options = {**FEW, "drop_blocks": False, "drop_sites": False}
    with pytest.raises(BudgetError, match=r"let more go \(.*forge.cut_tokens=predicted"):
        derive(checkpoint, tmp_path / "n", options={**options, "cut_tokens": "never"}, **given)
    made = derive(checkpoint, tmp_path / "m", options=options, training={"steps": 2}, **given)
    spec, more = made.model.spec, made.record.facts.more
    assert spec.macs <= MACS and len(spec.blocks) == 2
    assert [b.tokens for b in spec.blocks] == list(more["tokens"]) and any(more["tokens"])
    assert {"refit_head"} == set(more["tried"]), "weights are solved for all tokens"
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(tmp_path / "m")(images), made.model(images))


def test_milliseconds_are_spent_on_tokens_where_the_table_lists_fewer(tmp_path: Path) -> None:
    """At a budget that nothing else reaches; a table that says nothing of tokens is refused."""
    checkpoint, table = write_checkpoint(tmp_path), write_cost_table(tmp_path)
    given: dict[str, Any] = {"method": "forge", "rate": None, "ms": 0.73, "cost_table": table, "training": {"steps": 0}}
    options = {**FEW, "drop_blocks": False, "drop_sites": False}
    made = derive(checkpoint, tmp_path / "m", options=options, **given)
    prices = load_cost_table(table).in_quantity("ms")
    first, _ = made.model.spec.blocks
    assert first.tokens in (8, 16) and made.record.budget.reached == pytest.approx(prices.cost(made.model.spec.blocks))
    assert 0.7 < made.record.budget.reached <= 0.73
    assert prices.cost([replace(dims, tokens=0) for dims in made.model.spec.blocks]) > 0.73
    silent = json.loads(table.read_text())
    silent["costs"] = [cost for cost in silent["costs"] if "tokens" not in cost]
    table.write_text(json.dumps(silent))
    with pytest.raises(CostTableError, match="and forge is to remove tokens; measure one that"):
        derive(checkpoint, tmp_path / "n", options=options, **given)


def test_a_schedule_contains_a_plan_that_is_given_no_more_tokens() -> None:
    plan = {0: BlockDims(2, 16, 16, 8, tokens=16), 2: BlockDims(2, 16, 16, 8)}
    assert containing((16, 0, 0), plan) and containing((0, 0, 0), plan)
    assert not containing((8, 0, 0), plan), "fewer tokens"
    assert not containing((0, 16, 0), plan), "the block behind which they leave is gone"


def test_all_tokens_stay_where_they_save_nothing_that_is_known(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=None, params="20k", options=FEW,
                  training={"steps": 0})  # fmt: skip
    assert not any(b.tokens for b in made.model.spec.blocks) and "tokens" not in made.record.facts.more
