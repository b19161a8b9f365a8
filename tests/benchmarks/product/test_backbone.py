"""The figures of smaller backbones are points below the base, fold by fold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.product import backbone

BASE = [{"knn": 0.5, "linear": 0.6, "images": 100}, {"knn": 0.7, "linear": 0.8, "images": 300}]
MODEL = [{"knn": 0.4, "linear": 0.6, "images": 100}, {"knn": 0.7, "linear": 0.7, "images": 300}]


def test_points_are_of_images_and_errors_of_folds() -> None:
    assert backbone.points(BASE, [MODEL], "knn") == pytest.approx((2.5, 5.0))
    assert backbone.points(BASE, [MODEL], "linear") == pytest.approx((7.5, 5.0))
    assert backbone.points(BASE, [MODEL, BASE], "linear") == pytest.approx((3.75, 2.5)), "seeds share test images"


def test_a_record_becomes_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "FILE", tmp_path / "backbone.json")
    assert backbone.section() == ""
    row = {"method": "forge", "rate": 0.5, "steps": 0, "train_images": 199}
    row["likeness"] = {"drawings": 0.97, "clothes": 0.95}
    row["tasks"] = {"drawings": MODEL, "clothes": BASE}
    trained = {**row, "steps": 200, "tasks": {"drawings": BASE, "clothes": BASE}}
    rows = {"a": trained, "b": row, "c": {**row, "seed": 43}}
    record = {
        "schema": 2,
        "base": dict.fromkeys(("drawings", "clothes"), BASE),
        "rows": rows,
    }
    timed = {"rate": 0.5, "ratio": 0.52, "interval": [0.49, 0.61], "base_ms": 38.1, "cpu": "Xeon", "fused": [12, 12]}
    record["timing"] = [
        {**timed, "batch": 1},
        {**timed, "batch": 8, "base_ms": 226.0},
        {**timed, "rate": 0.7, "fused": None},
    ]
    (tmp_path / "backbone.json").write_text(json.dumps(record))
    shown = " ".join(backbone.section().split())
    assert "65.0 % with k-NN and 75.0 % with a linear probe of 400 test images" in shown and "199 drawings" in shown
    none, cosines = "0.0 (0.0)", "0.970 | 0.950"
    lines = [f"| 0.5 | forge | 2.5 (5.0) | 7.5 (5.0) | {none} | {none} | 2.5 (2.5 to 2.5) | {cosines} | 2 |"]
    lines.append(f"| 0.5 | forge, 200 steps of views | {none} | {none} | {none} | {none} | 0.0 | {cosines} | 1 |")
    assert " ".join(lines) in shown
    assert "alternately with the base (38 ms at batch 1 and 226 ms at batch 8)" in shown
    assert "| 0.5 | 0.52 (0.49 to 0.61) | 0.52 (0.49 to 0.61) | 12 of 12 |" in shown
