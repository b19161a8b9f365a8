"""What forge loses: which derivations there are, and points below the base."""

from __future__ import annotations

import pytest

from benchmarks.product import accuracy


def test_every_step_of_forge_is_taken_away_at_every_rate_where_it_may_matter() -> None:
    cases = accuracy.cases()
    without = {(case.variant, case.rate) for case in cases["without"]}
    assert without == {(step, rate) for step in accuracy.WITHOUT for rate in (0.8, 0.9, 0.95)}
    assert {case.rate for case in cases["closed"]} == set(accuracy.RATES)
    keys = [case.key("base") for part in cases.values() for case in part]
    assert len(keys) == len(set(keys))


def test_the_base_is_fine_tuned_once_per_sub_task_and_seed() -> None:
    tuned = [(case.task, case.seed) for part in accuracy.cases().values() for case in part if case.finetune_base]
    assert len(tuned) == len(set(tuned)) == 9


def test_points_are_below_the_restricted_base() -> None:
    assert accuracy.below([{"accuracy": {"base_restricted": 0.9, "derived": 0.85}}]) == [pytest.approx(5)]
