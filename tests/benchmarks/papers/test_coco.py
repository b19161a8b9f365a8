"""The command for COCO2017 goes through all of its steps on rendered pictures under COCO's names of folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from detectors import write_detectors
from safetensors.torch import save_file

from benchmarks import scenes
from benchmarks.papers import coco, coco_network
from edgevit.network.builder import built
from edgevit.network.opening import open_network

pytestmark = pytest.mark.usefixtures("own_cache")
NAMES = ("person", "car", "cat", "dog", "bus", "chair")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pictures under the names of folders and categories of COCO2017."""
    scenes.render(tmp_path / "scenes", train=90, val=8, size=48)
    root = tmp_path / "coco"
    (root / "annotations").mkdir(parents=True)
    for part in scenes.PARTS:
        content = json.loads((tmp_path / "scenes" / "annotations" / f"instances_{part}.json").read_text())
        content["categories"] = [{"id": i, "name": name} for i, name in enumerate(NAMES, 1)]
        (root / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))
        (tmp_path / "scenes" / "images" / part).rename(root / f"{part}2017")
    return root


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["coco", *map(str, arguments)])
    coco.main()


@pytest.mark.slow
def test_a_dry_run_goes_through_every_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_detectors(tmp_path).read_text().replace("kind(backbone, 4,", "kind(backbone, 7,")
    (tmp_path / "my_detector.py").write_text(text)
    detector = f"{tmp_path / 'my_detector.py'}:masks"
    save_file(built(detector).state_dict(), tmp_path / "weights.safetensors")
    options = ("--detector", detector, "--dry-run", "--device", "cpu", "--out", tmp_path / "out")
    command(monkeypatch, data, "--checkpoint", tmp_path / "weights.safetensors", *options)
    shown = capsys.readouterr().out
    assert "| MACs gone | method | AP of boxes | AP of masks | person | car | cat |" in " ".join(shown.split())
    assert all(f"| {name} " in " ".join(shown.split()) for name in ("base", "base, fine-tuned", "vulcan", "nuwa"))
    few = json.loads((tmp_path / "out" / "few" / "annotations" / "instances_train2017.json").read_text())
    shown = {entry["image_id"] for entry in few["annotations"] if entry["category_id"] <= len(coco.CLASSES)}
    assert {image["id"] for image in few["images"]} == shown and 40 < len(shown) <= coco.DRY_IMAGES


def test_a_wrong_path_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"has no annotations/, which COCO2017 has; unpack"):
        command(monkeypatch, tmp_path, "--checkpoint", tmp_path / "x.pth", "--out", tmp_path / "out")


@pytest.mark.slow
def test_weights_of_the_swin_alone_are_put_into_the_detector(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    file.write_text(Path(coco_network.__file__).read_text().replace("= 800, 256, 91", "= 224, 16, 91"))
    body = timm.create_model(coco_network.NAME, num_classes=3)
    save_file(body.state_dict(), tmp_path / "swin.safetensors")
    made: Any = open_network(f"{file}:faster_rcnn", checkpoint=tmp_path / "swin.safetensors")
    state, wanted = made.state_dict(), body.state_dict()
    same = [name for name in wanted if f"detector.backbone.body.{name}" in state]
    assert len(same) > 150 and made.spec.builder.backbone_alone and made.spec.rest.proposals == 1000
    for name in same:
        torch.testing.assert_close(state[f"detector.backbone.body.{name}"], wanted[name])
