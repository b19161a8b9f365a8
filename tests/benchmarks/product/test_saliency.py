"""The saliency network has the shapes of the published one, and its record becomes a screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.product import saliency
from benchmarks.product.saliency_network import Saliency


def test_the_map_is_as_large_as_the_image() -> None:
    with torch.inference_mode():
        assert Saliency(28).eval()(torch.zeros(1, 3, 28, 28)).shape == (1, 1, 28, 28)


def test_a_record_becomes_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saliency, "FILE", tmp_path / "saliency.json")
    assert saliency.section() == ""
    row = {
        "rate": 0.5, "base_macs": 1.8e9, "train_images": 203, "images": 235, "foreground": 0.33, "iou": 0.885,
        "error": 0.0472, "method": "forge", "embed": 224, "macs": 0.9e9, "steps": 0,
    }  # fmt: skip
    rows = {"forge 0.5 0": row, "forge 0.5 200": {**row, "steps": 200, "error": 0.04}}
    (tmp_path / "saliency.json").write_text(json.dumps({"schema": 1, "parity": 5.7e-6, "rows": rows}))
    shown = " ".join(saliency.section().split())
    assert "| 0.50 | forge, 200 steps | 224 | 0.0400 | 88.5% | | 0.50 | forge | 224 | 0.0472 | 88.5% |" in shown
    assert "at most 5.7e-06 at 224 px" in shown
