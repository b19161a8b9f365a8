"""A ready-made network stands beside the base and what was derived from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.product import backbone, ready_made

TASKS = {
    "drawings": [{"knn": 0.5, "linear": 0.6, "images": 100}, {"knn": 0.7, "linear": 0.8, "images": 300}],
    "clothes": [{"knn": 0.9, "linear": 1.0, "images": 10}],
}


def test_records_become_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_made, "FILE", tmp_path / "ready_made.json")
    monkeypatch.setattr(backbone, "FILE", tmp_path / "backbone.json")
    assert ready_made.section() == ""
    derived = {"rate": 0.8, "tasks": TASKS}
    (tmp_path / "backbone.json").write_text(json.dumps({"rows": {"forge 0.8 200": derived, "forge 0.3 0": derived}}))
    rows = {
        "dinov2": {"macs": 1_500_000_000, "tasks": TASKS},
        "efficientnet-lite0 112": {"macs": 100_000_000, "tasks": TASKS},
    }
    time = {"key": "efficientnet-lite0 112", "ratio": 0.12, "interval": [0.11, 0.13], "base_ms": 20.0, "cpu": "Xeon"}
    of_cells = [{"knn": 0.75, "linear": 0.5, "images": 10}]
    record = {"rows": rows, "timing": [time], "cells": dict.fromkeys([*rows, "forge 0.8 200"], of_cells)}
    (tmp_path / "ready_made.json").write_text(json.dumps(record))
    shown = " ".join(ready_made.section().split())
    cells = "65.0 | 75.0 | 90.0 | 100.0 | 75.0 | 50.0"
    assert f"| DINOv2 ViT-S/14, 112 px | 1.50 G | {cells} | 1 |" in shown
    assert f"| forge, 0.8 of its MACs gone, 112 px | 0.30 G | {cells} | |" in shown
    assert f"| EfficientNet-Lite0, 112 px | 0.10 G | {cells} | 0.12 (0.11 to 0.13) |" in shown
    assert "one thread of Xeon" in shown and "0.3 of" not in shown
