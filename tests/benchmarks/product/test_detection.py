"""The detectors of the benchmark read pictures of their size, and its record becomes a screen."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.product import detection, detection_network
from edgevit.data.sources.coco import CocoObject
from edgevit.network.detector import check_detector


@pytest.mark.parametrize("function", ["vit", "swin", "masks"])
def test_a_pyramid_has_levels_of_4_8_and_16_pixels(function: str) -> None:
    detector = getattr(detection_network, function)().eval()
    check_detector(detector, (3, 96, 96))
    with torch.inference_mode():
        levels = detector.backbone(torch.zeros(1, 3, 96, 96))
    assert [tuple(level.shape) for level in levels.values()] == [(1, 64, side, side) for side in (24, 12, 6)]


def test_boxes_of_a_mirrored_picture_are_mirrored() -> None:
    source = SimpleNamespace(objects=lambda _: [CocoObject(3, (10.0, 20.0, 30.0, 5.0))])
    plain, mirrored = (detection._targets(source, "picture", mirror) for mirror in (False, True))
    assert plain["boxes"].tolist() == [[10, 20, 40, 25]] and mirrored["boxes"].tolist() == [[56, 20, 86, 25]]
    assert mirrored["labels"].tolist() == [3]


def test_a_record_becomes_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "FILE", tmp_path / "detection.json")
    assert detection.section() == ""
    row = {"network": "masks", "images": 300, "objects": 990, "macs": 1.0e8, "ap50": 0.5}
    cut = {"method": "magnitude", "rate": 0.5, "ap": 0.2, "ap_masks": 0.1}
    whole = {"method": "base", "rate": 0.0, "ap": 0.31, "ap_masks": 0.2}
    rows = {
        "magnitude": {**row, **cut, "drawn": [0.19, 0.21], "drawn_masks": [0.09, 0.12]},
        "base": {**row, **whole, "drawn": [0.3, 0.32], "drawn_masks": [0.2, 0.22]},
        "tuned": {**row, **whole, "method": "base, fine-tuned", "ap": 0.35},
    }
    latency = {"masks magnitude 0.5": {"ratio": 0.7, "low": 0.6, "high": 0.8}}
    (tmp_path / "detection.json").write_text(json.dumps({"schema": 1, "rows": rows, "latency": latency}))
    shown = " ".join(detection.section().split())
    assert "| 0 | base | 31.0 | 50.0 | 20.0 | | | | | 0 | base, fine-tuned | 35.0 | 50.0 | 20.0 | | | |" in shown
    lost = "11.0 (11.0 to 11.0) | 10.0 (10.0 to 11.0)"
    assert f"| 0.5 | magnitude | 20.0 | 50.0 | 10.0 | {lost} | 0.70 (0.60 to 0.80) |" in shown
    assert "300 other pictures with 990 objects" in shown
