"""The comparison of distillation recipes: what its table computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import results


def look(step: int, accuracy: float, loss: float, fresh: float) -> dict[str, Any]:
    return {"step": step, "validation": {"top1": accuracy, "loss": loss}, "fresh": {"top1": fresh, "loss": loss}}


def test_a_row_is_judged_by_the_state_that_each_rule_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [look(0, 0.90, 0.02, 0.900), look(40, 0.92, 0.05, 0.880), look(80, 0.91, 0.01, 0.910)]
    how = {"steps": 200, "batch_size": 48, "lr": 3e-4, "evaluations": 2}
    row = {"task": 12, "rate": 0.9, "seed": 42, "recipe": "before", "base_sha256": "b"}
    row |= {"training": how, "looks": looks}
    (tmp_path / "distillation.json").write_text(json.dumps({"fresh_per_class": 200, "rows": [row]}))
    monkeypatch.setattr("tables.RESULTS", tmp_path)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in results.distillation().splitlines()]
    by = {line[0].rpartition(", ")[2]: line[1:] for line in lines if line[0].startswith("12 classes")}
    assert by["the highest accuracy"] == ["40", "90.0", "88.0", "-2.0", "0.0200", "0.0500", "0.0500"]
    assert by["the lowest loss"] == by["the last step"] == ["80", "90.0", "91.0", "+1.0", "0.0200", "0.0500", "0.0100"]
