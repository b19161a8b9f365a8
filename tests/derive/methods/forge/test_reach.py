"""A budget that forge cannot reach is refused with the axis that ends it, and with what would let more go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derive.methods.forge.method import Config
from edgevit.derive.methods.forge.reach import check_reachable, least_of
from edgevit.derive.problem import Problem
from edgevit.errors import BudgetError
from edgevit.models.checkpoint import describe

ALL_OFF: dict[str, Any] = {"drop_blocks": False, "drop_heads": False, "drop_sites": False, "cut_embedding": False}


def problem(small_vit: Any, folder: Path, rate: float, shape: str = "fused", **args: Any) -> Problem:
    base = describe(small_vit(depth=3, num_heads=4, **args), "vit_tiny_patch16_224", {"depth": 3, "num_heads": 4})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, rate, folder, shape)


@pytest.mark.parametrize(
    ("options", "ends", "more"),
    [
        ({}, r"lies outside the blocks, and the embedding ends at 16 channels", r"; raise the budget, or try"),
        (
            {"cut_embedding": False},
            r"lies outside the blocks, and the embedding ends at 64 channels",
            r"; raise the budget, let more go \(forge.cut_embedding=true\), or try",
        ),
        (
            ALL_OFF,
            r"is attention, which ends at 4 heads of 16 and 16 in 3 blocks",
            r"\(forge.cut_embedding=true, forge.drop_blocks=true, forge.drop_heads=true, forge.drop_sites=true\)",
        ),
    ],
    ids=["all on", "embedding off", "all off"],
)
def test_the_axis_that_ends_a_budget_is_told(
    small_vit: Any, tmp_path: Path, options: dict[str, Any], ends: str, more: str
) -> None:
    config = Config(calibration_images=96, **options)
    with pytest.raises(BudgetError, match=rf"\d+% of it {ends}\).*{more}") as refused:
        check_reachable(problem(small_vit, tmp_path, 0.999), config)
    assert refused.value.least is not None and "\n" not in str(refused.value)


def test_axes_switched_off_until_nothing_is_left_are_told(small_vit: Any, tmp_path: Path) -> None:
    """A base that is already as small as the shape policy allows."""
    small = problem(small_vit, tmp_path, 0.1, mlp_ratio=0.125)
    with pytest.raises(BudgetError, match=r"nothing of it may be cut in shape 'fused' with .*; let more go \(forge"):
        check_reachable(small, Config(**ALL_OFF))
    assert least_of(small, Config(**{**ALL_OFF, "drop_blocks": True})).cost < small.budget.base


def test_tokens_that_may_leave_reach_further(small_vit: Any, tmp_path: Path) -> None:
    one = problem(small_vit, tmp_path, 0.5)
    options: dict[str, Any] = {"calibration_images": 96, "drop_blocks": False, "drop_sites": False}
    with_all, with_fewer = (least_of(one, Config(**options, cut_tokens=cut)) for cut in (False, True))
    assert with_fewer.cost < with_all.cost and any(b.tokens for b in with_fewer.blocks)
