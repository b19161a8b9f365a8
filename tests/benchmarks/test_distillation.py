"""The comparison of distillation recipes: what its table computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import distillation
import distillation_tables
import pytest

from edgevit.data.task import UNLABELLED, open_task

PREPROCESSING = {
    "input_size": (3, 32, 32), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0,
}  # fmt: skip


def look(step: int, accuracy: float, loss: float, fresh: float) -> dict[str, Any]:
    return {"step": step, "validation": {"top1": accuracy, "loss": loss}, "fresh": {"top1": fresh, "loss": loss}}


def test_a_row_is_judged_by_the_state_that_each_rule_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [look(0, 0.90, 0.02, 0.900), look(40, 0.92, 0.05, 0.880), look(80, 0.91, 0.01, 0.910)]
    how = {"steps": 200, "batch_size": 48, "lr": 3e-4, "evaluations": 2}
    row = {"task": 12, "rate": 0.9, "seed": 42, "recipe": "before", "base_sha256": "b"}
    row |= {"training": how, "looks": looks}
    (tmp_path / "distillation.json").write_text(json.dumps({"fresh_per_class": 200, "rows": [row]}))
    monkeypatch.setattr("tables.RESULTS", tmp_path)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in distillation_tables.states().splitlines()
    ]
    by = {line[0].rpartition(", ")[2]: line[1:] for line in lines if line[0].startswith("12 classes")}
    assert by["the highest accuracy"] == ["40", "90.0", "88.0", "-2.0", "0.0200", "0.0500", "0.0500"]
    assert by["the lowest loss"] == by["the last step"] == ["80", "90.0", "91.0", "+1.0", "0.0200", "0.0500", "0.0100"]


def test_a_recipe_is_compared_with_the_methods_own_from_the_same_closed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"steps": 200, "batch_size": 48, "lr": 3e-4, "evaluations": 5}
    rows = [
        {"task": 5, "rate": 0.95, "seed": seed, "recipe": recipe, "base_sha256": "b", "training": how,
         "fresh_images": 900, "looks": [look(0, 0.9, 0.1, 0.8)], "kept": {"top1": top1, "loss": 0.05}}
        for recipe, seed, top1 in (("gentle", 42, 0.9), ("gentle", 43, 0.92), ("gentle, clipping", 42, 0.91),
                                   ("gentle, clipping", 43, 0.91), ("gentle, clipping", 44, 0.2))
    ]  # fmt: skip
    few = [{**row, "images": 400} for row in rows[:1]]
    (tmp_path / "distillation_fashion.json").write_text(json.dumps({"rows": rows + few}))
    monkeypatch.setattr("tables.RESULTS", tmp_path)
    text = distillation_tables.recipes("_fashion")
    clipping = "91.0 (91.0 to 91.0) | +0.0 (-1.0 to +1.0) | 0.0500 | 2 |"  # of seed 44 there is nothing to compare with
    assert f"| 5 classes, 0.95, gentle, clipping | 80.0 (80.0 to 80.0) | {clipping}" in text
    assert "with 400 training images in all" in text and distillation_tables.recipes("_fine") == ""


def test_images_are_shared_out_so_that_none_serves_two_ends() -> None:
    task = open_task("digits", "3,7,9", preprocessing=PREPROCESSING, base_outputs=10)
    made = distillation.shared_out(task, 45)
    parts = [made.task.train, made.more(4), made.judged, task.validation, task.test]
    seen = [reference for part in parts for reference in part.references]
    assert len(set(seen)) == len(seen) and len(parts[0]) == 45 and len(parts[1]) == 180
    assert set(parts[1].labels) == {UNLABELLED} and set(made.judged.labels) == {0, 1, 2}
    with pytest.raises(SystemExit, match="lower --images"):
        made.more(9)
