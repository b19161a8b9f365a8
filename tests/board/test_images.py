"""Which pictures an end-to-end bench begins with, and who says how they are preprocessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from model_folders import export_of
from some_engines import add
from standin_board import write_model

from edgevit.board.bench import bench
from edgevit.board.images import find_images, preprocessing_of
from edgevit.errors import DataError, OptionError
from edgevit.records.model_folder import ModelFolder

SETTINGS = {
    "input_size": [3, 8, 8], "interpolation": "bilinear", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
    "crop_pct": 1.0, "crop_mode": "center",
}  # fmt: skip
FAST: dict[str, Any] = dict(samples=6, duration_s=0, warmup=1, warmup_seconds=0, threads=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file that says how its pictures are preprocessed."""
    path = write_model(tmp_path / "small.onnx", channels=3)
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"preprocessing": json.dumps(SETTINGS)})
    onnx.save(proto, path)
    return path


def test_pictures_are_spread_over_all_folders(image_folder: Any, tmp_path: Path) -> None:
    root = image_folder(tmp_path / "pictures", {"a": 4, "b": 4, "b/@eaDir/0.png": 1, ".thumbnails": 2})
    (root / "a" / "notes.txt").write_text("no picture")
    assert len(find_images(root)) == 8
    assert [path.parent.name for path in find_images(root, most=4)] == ["a", "a", "b", "b"]
    assert find_images(root / "a" / "0.png") == [root / "a" / "0.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no picture"):
        find_images(tmp_path / "empty")
    with pytest.raises(DataError, match="there is no"):
        find_images(tmp_path / "nowhere")


def test_the_model_says_how_its_pictures_are_preprocessed(model: Path, tmp_path: Path) -> None:
    assert preprocessing_of(model)["crop_pct"] == 1.0
    engine, export = add(tmp_path / "m"), ModelFolder(tmp_path / "m").export
    export.write_record(replace(export_of({}), preprocessing=SETTINGS))
    assert preprocessing_of(engine.path) == SETTINGS
    for other in (write_model(tmp_path / "bare.onnx"), tmp_path / "alone.engine"):
        with pytest.raises(OptionError, match="does not say how its pictures are preprocessed"):
            preprocessing_of(other)


def test_a_bench_goes_from_the_picture_to_the_logits(model: Path, image_folder: Any, tmp_path: Path) -> None:
    pictures = image_folder(tmp_path / "pictures", {"a": 3})
    (run,) = bench(model, end_to_end=True, images=pictures, period_ms=5, **FAST).runs
    assert run.use() == "end to end, one per 5 ms" and run.period_ns == 5_000_000
    assert run.parts_ns is not None and len(run.parts_ns["decode"]) == len(run.latencies_ns) == 6
    assert run.wall_ns >= 6 * run.period_ns
