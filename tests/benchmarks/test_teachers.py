"""Which rows had a teacher whose products were in bf16."""

from __future__ import annotations

import subprocess
from typing import Any

import accuracy
import pytest
import teachers
from places import ROOT

from edgevit.train import products


def row(commit: str, variant: str = "corp", seed: int = 42, **changed: Any) -> dict[str, Any]:
    return {
        "variant": variant, "seed": seed, "task": 5, "rate": 0.9, "steps": 100, "last_losses": {"loss_teacher": 0.1},
        "versions": {"edgevit": f"0.1.0 ({commit})"}, **changed,
    }  # fmt: skip


def test_a_row_tells_it_or_its_commit_does() -> None:
    assert teachers.in_bf16(row("2479401+")) is False and teachers.in_bf16(row("529e0b5")) is True
    assert teachers.in_bf16(row("529e0b5", teacher_bf16=False)) is False
    assert teachers.in_bf16(row("529e0b5", device="cuda")) is False
    assert teachers.in_bf16(row("529e0b5", last_losses={"loss_task": 1.0})) is None


def test_the_sentence_names_the_rows() -> None:
    old = [row("c59c2fa", seed=42), row("c59c2fa", "forge", steps=50)]
    new = [row("401d521", seed=43), row("401d521", "random", seed=43), row("401d521", task=3)]
    told = " ".join(teachers.products_told([*old, *new]).split())
    assert "Of 5 rows" in told and "3 had one whose products were in bf16" in told
    assert "3 classes at 0.9, 100 steps, all 1; 5 classes at 0.9, 100 steps, `corp` of seed 43, `random` (3 by" in told
    assert "All 2 rows" in teachers.products_told(old) and teachers.products_told([]) == ""


def test_commits_are_before_or_after_as_history_has_them() -> None:
    def is_ancestor(older: str, newer: str) -> bool:
        command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", older, newer]
        return subprocess.run(command, capture_output=True).returncode == 0

    if not is_ancestor(teachers.SINCE, "HEAD"):
        pytest.skip("no history here")
    assert not [commit for commit in teachers.BEFORE if is_ancestor(teachers.SINCE, commit)]
    assert not [commit for commit in teachers.BEFORE if not is_ancestor(commit, "HEAD")]


@pytest.mark.parametrize("has", [True, False])
def test_new_rows_record_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "multiplies_bf16", lambda: has)
    assert accuracy.told_teacher({"last_losses": {"loss_teacher": 0.1}}) == {"teacher_bf16": has}
    assert accuracy.told_teacher({"last_losses": {"loss_teacher": 0.1}, "device": "cuda"}) == {"teacher_bf16": False}
    assert accuracy.told_teacher({"last_losses": {"loss_task": 0.1}}) == {}
