"""Rendered pictures with annotated objects."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from benchmarks.scenes import CLASSES, draw, render


def test_boxes_and_run_lengths_are_of_the_visible_masks(tmp_path: Path) -> None:
    render(tmp_path, train=6, val=1, size=48)
    content = json.loads((tmp_path / "annotations/instances_train.json").read_text())
    masks: dict[int, list[np.ndarray]] = {}
    for entry in content["annotations"]:
        counts = entry["segmentation"]["counts"]
        mask = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(48, 48, order="F")
        rows, columns = np.nonzero(mask)
        left, top, width, height = entry["bbox"]
        assert entry["area"] == mask.sum() > 0
        assert (left, top, left + width, top + height) == (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        masks.setdefault(entry["image_id"], []).append(mask)
    assert len(masks) == 6 and max(map(len, masks.values())) > 2
    assert all(sum(m.astype(int) for m in of_image).max() == 1 for of_image in masks.values())
    assert [entry["name"] for entry in content["categories"]] == [*CLASSES]


def test_objects_differ_from_what_is_behind_and_cover_each_other() -> None:
    covered = 0
    for index in range(12):
        picture, objects = draw(np.random.default_rng(index), size=64)
        behind = ~np.any([mask for _, mask in objects], axis=0)
        for _, mask in objects:
            assert abs(picture[mask].mean(0) - picture[behind].mean(0)).max() > 15
        boxes = [mask.any(0)[:, None] & mask.any(1) for _, mask in objects]
        covered += sum(np.any(a & b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert covered > 3


def test_a_picture_depends_on_its_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        render(tmp_path / name, train=2, val=1, size=32, seed=seed)
    first, again, other = (
        hashlib.sha256((tmp_path / name / "images/train/00002.png").read_bytes()).hexdigest()
        for name in ("first", "again", "other")
    )
    assert first == again != other
