"""Derive a network with a head of the user's: its map is to be the base's, on images without labels."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_networks import FEW, derive_map, write_depth, write_frames
from PIL import Image

import edgevit
from edgevit.errors import BudgetError, DataError, EdgeVitError, OptionError
from edgevit.network.opening import open_network
from edgevit.network.output import Map
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_depth(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frames(tmp_path_factory.mktemp("data") / "images")


derive = partial(derive_map, output="map:foreground", rate=0.4)


@pytest.fixture(scope="module")
def derived(file: Path, frames: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return derive(f"{file}:build", frames, tmp_path_factory.mktemp("maps") / "model")


def test_a_map_of_few_images_is_refused_by_their_number(file: Path, frames: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    for picture in sorted(frames.iterdir())[:8]:
        shutil.copy(picture, tmp_path / "few")
    few = r"^6 training images cannot show what the base's maps are like, 10 or more can \(2 others are held out\)"
    with pytest.raises(DataError, match=few):
        derive(f"{file}:build", tmp_path / "few", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_map_is_like_the_bases(derived: Any, file: Path, frames: Path) -> None:
    spec, record = derived.model.spec, derived.record.map
    assert spec.macs <= 0.61 * spec.base.macs and len(spec.blocks) == 3 and spec.output == "foreground"
    base, loaded = open_network(f"{file}:build"), edgevit.load(derived.folder)
    pictures = [Image.open(picture).convert("RGB") for picture in sorted(frames.iterdir())]
    batch = torch.stack([loaded.transform(picture) for picture in pictures])
    with torch.inference_mode():
        wanted, maps = base(batch), loaded(batch)  # type: ignore[operator]
    error = (wanted.sigmoid() - maps.sigmoid()).abs().mean()
    assert wanted.sigmoid().std() > 5 * error, "else any constant would do"
    assert record is not None and record.images == derived.record.data.images.test
    assert record.agreement > 0.9 and record.error == pytest.approx(float(error), rel=0.5)
    assert derived.record.similarity is None and "a map of foreground" in (derived.folder / "README.md").read_text()


def test_another_head_of_the_same_weights_has_measurements_of_its_own(
    derived: Any, file: Path, frames: Path, tmp_path: Path
) -> None:
    coarse = derive(f"{file}:build_coarse", frames, tmp_path / "model")
    assert coarse.model.spec.base.weights_sha256 == derived.model.spec.base.weights_sha256
    assert coarse.record.map.agreement > 0.9


def test_a_head_without_weights_is_refused(file: Path, frames: Path, tmp_path: Path) -> None:
    base: Any = open_network(f"{file}:build")
    torch.save(base.module.backbone.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(OptionError, match=r"the weights are of backbone alone; .* of all, or train it"):
        derive(f"{file}:build", frames, tmp_path / "model", checkpoint=tmp_path / "vit.pth")


@pytest.mark.slow
def test_a_narrower_embedding_reaches_a_rate_that_the_whole_one_does_not(
    file: Path, frames: Path, tmp_path: Path
) -> None:
    whole = {**FEW, "cut_embedding": False}
    with pytest.raises(BudgetError, match="the embedding ends at 64 channels"):
        derive(f"{file}:build", frames, tmp_path / "whole", rate=0.9, options=whole)
    training = Training(device="cpu", steps=2, batch_size=8, evaluations=1, token_weight=1.0)
    made = derive(f"{file}:build", frames, tmp_path / "model", rate=0.9, training=training)
    assert made.model.spec.narrowed[0] < 64 and made.record.map.agreement > 0.85
    exported = edgevit.export(made.folder)
    assert exported.parity["fp32"].error < 1e-4


def test_a_report_has_no_accuracy_of_maps(derived: Any, tmp_path: Path) -> None:
    edgevit.report([derived.folder], output=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "## Smaller networks" in page and f"| {derived.record.map.agreement:.1%} |" in page
    assert "top-1" not in page and "--classes" not in page


@pytest.mark.slow
def test_files_are_judged_by_parity_and_by_targets(derived: Any, frames: Path) -> None:
    report = edgevit.export(derived.folder)
    assert [tensor.name for tensor in report.outputs] == ["maps"] and report.accuracy.torch is None
    assert report.parity["fp32"].error < 1e-5 and report.accuracy.files["fp32"].agreement > 0.999
    onnx = derived.folder / "export" / "model.fp16.onnx"
    assert edgevit.evaluate(onnx, frames).agreement > 0.98
    masks = frames.with_name("masks")
    masks.mkdir()
    loaded = edgevit.load(derived.folder)
    for picture in sorted(frames.iterdir())[:60]:
        with torch.inference_mode():
            found = loaded(loaded.transform(Image.open(picture).convert("RGB"))[None])[0, 0] > 0
        Image.fromarray(found.numpy().astype(np.uint8)).resize((32, 32)).save(masks / picture.name)
    whole = edgevit.evaluate(derived.folder, frames.parent)
    assert (
        whole.images == 60 and whole.targets.score > 0.8 and edgevit.evaluate(onnx, frames.parent).targets is not None
    )
    with pytest.raises(OptionError, match="gives maps: give --data with images/, and their targets in masks/"):
        edgevit.evaluate(derived.folder, frames)


@pytest.mark.slow
def test_a_derived_network_is_a_base_and_keeps_its_kind_of_map(derived: Any, frames: Path, tmp_path: Path) -> None:
    smaller = derive(derived.folder, frames, tmp_path / "smaller", rate=0.2, output="map")
    assert smaller.model.spec.macs < 0.85 * derived.model.spec.macs and smaller.model.output == Map("foreground")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "options"),
    [
        (1e-3, {"rate": 0.9}),
        (2e-4, {"rate": 0.5, "method": "snapvit", "options": {"calibration_images": 20, "generations": 2}}),
    ],
    ids=["forge", "snapvit"],
)
def test_distillation_brings_the_map_nearer(
    file: Path, frames: Path, tmp_path: Path, lr: float, options: dict[str, Any]
) -> None:
    """There are no labels, so every method learns from the base."""
    training = Training(device="cpu", steps=40, batch_size=16, lr=lr, evaluations=4)
    made = derive(f"{file}:build", frames, tmp_path / "model", output="map", training=training, **options)
    lines = [json.loads(line) for line in (made.folder / "history.jsonl").read_text().splitlines()]
    losses = [line["loss_validation"] for line in lines if "loss_validation" in line]
    assert made.record.facts.kept_step > 0 and min(losses) < 0.95 * losses[0]
    assert made.model.spec.output == "values" and (made.model.spec.narrowed is None) == ("method" in options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "features"}, "--output features: the output of this base is a map of values; try --output map"),
        ({"output": "map:depth"}, "no output 'map:depth'"),
        ({"output": "map:classes"}, "the map of this base has 1 channel, .*; try --output map:foreground, or"),
        ({"classes": "a,b"}, "--classes is for classes, and the output is map:foreground"),
        (
            {"method": "heart", "options": {}},
            "--output map:foreground is for images without labels, and heart reads labels of classes",
        ),
    ],
)
def test_other_outputs_are_refused(
    file: Path, frames: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EdgeVitError, match=message):
        derive(f"{file}:build", frames, tmp_path / "model", **options)


def test_a_map_of_foreground_has_one_channel(file: Path, frames: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        file.read_text(encoding="utf-8") + "\n\nclass Pair(Depth):\n    def forward(self, images):\n"
        "        return super().forward(images).expand(-1, 2, -1, -1)\n"
    )
    with pytest.raises(OptionError, match="has 2 channels, expected one channel of logits; try --output map:classes"):
        derive(f"{tmp_path / 'mine.py'}:Pair", frames, tmp_path / "model")


def test_a_network_without_such_a_head_has_no_map(small_vit: Any, frames: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no map: there is no head of your own; try --output features"):
        derive(small_vit(), frames, tmp_path / "model")
