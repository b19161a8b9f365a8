"""The figures of smaller backbones are points below the base, fold by fold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.product import backbone

BASE = [{"knn": 0.5, "linear": 0.6, "images": 100}, {"knn": 0.7, "linear": 0.8, "images": 300}]
MODEL = [{"knn": 0.4, "linear": 0.6, "images": 100}, {"knn": 0.7, "linear": 0.7, "images": 300}]


def test_points_are_of_images_and_errors_of_folds() -> None:
    assert backbone.points(BASE, MODEL, "knn") == pytest.approx((2.5, 5.0))
    assert backbone.points(BASE, MODEL, "linear") == pytest.approx((7.5, 5.0))


def test_a_record_becomes_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "FILE", tmp_path / "backbone.json")
    assert backbone.section() == ""
    row = {
        "rate": 0.5, "train_images": 203, "cosine": 0.97, "same_neighbours": 0.61, "folds": MODEL, "seconds": 600,
    }  # fmt: skip
    (tmp_path / "backbone.json").write_text(json.dumps({"schema": 1, "base": BASE, "rows": {"0.5": row}}))
    shown = " ".join(backbone.section().split())
    assert "65.0 % with k-NN and 75.0 % with a linear probe" in shown and "203 drawings without labels" in shown
    assert "| 0.5 | 2.5 (5.0) | 7.5 (5.0) | 0.970 | 61.0% | 10 |" in shown
