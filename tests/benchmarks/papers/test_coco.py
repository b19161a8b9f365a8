"""The command for COCO2017 goes through all of its steps on rendered pictures under COCO's names of folders."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from detectors import write_detectors
from safetensors.torch import save_file
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from benchmarks import scenes
from benchmarks.papers import coco, coco_network
from edgevit.network.builder import built
from edgevit.network.creation import create_timm_network
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.network.output import Levels

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


def small_detector(folder: Path) -> tuple[object, ...]:
    """The options of a small Mask R-CNN of six classes, with weights."""
    text = write_detectors(folder).read_text().replace("kind(backbone, 4,", "kind(backbone, 7,")
    (folder / "my_detector.py").write_text(text)
    detector, weights = f"{folder / 'my_detector.py'}:masks", folder / "weights.safetensors"
    save_file(built(detector).state_dict(), weights)
    return "--detector", detector, "--checkpoint", weights


@pytest.mark.slow
def test_a_dry_run_goes_through_every_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--dry-run", "--rates", 0.99, 0.3, 0.2, "--device", "cpu", "--out", tmp_path / "out")
    command(monkeypatch, data, *small_detector(tmp_path), *options)
    shown = " ".join(capsys.readouterr().out.split())
    assert "| MACs gone | method | AP of boxes | AP of masks | person | car | cat |" in shown
    assert all(f"| {name} " in shown for name in ("0 | base", "0 | base, fine-tuned", "0.2 | vulcan", "0.2 | nuwa"))
    assert all(f"| 0.99 | {name} | out of reach | | | | |" in shown for name in coco.METHODS) and "| 0.3 |" not in shown
    assert not (tmp_path / "out" / "nuwa-0.2").exists(), "models of a dry run are not taken for those of the run"
    few = json.loads((tmp_path / "out" / "dry-run" / "few" / "annotations" / "instances_train2017.json").read_text())
    shown = {entry["image_id"] for entry in few["annotations"] if entry["category_id"] <= len(coco.CLASSES)}
    assert {image["id"] for image in few["images"]} == shown and 40 < len(shown) <= coco.DRY_IMAGES


def test_a_rate_out_of_reach_is_told_in_the_table_and_before_an_image_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = small_detector(tmp_path)
    (tmp_path / "coco" / "annotations").mkdir(parents=True)
    command(monkeypatch, tmp_path / "coco", *small, "--rates", 0.99, 0.95, "--out", tmp_path / "out")
    shown = capsys.readouterr()
    assert [line.split(" | ")[:3] for line in shown.out.splitlines()[2:6]] == [
        [f"| {rate}", method, "out of reach"] for rate in ("0.95", "0.99") for method in ("nuwa", "vulcan")
    ]
    reason = "vulcan at 0.99: out of reach, as at most 0.487 of the backbone's MACs go in shape 'paper'"
    assert reason in shown.out.splitlines() and reason in shown.err.splitlines()
    with pytest.raises(SystemExit, match="out was begun with other settings: steps was 5000 and is 9; choose"):
        command(monkeypatch, tmp_path / "coco", *small, "--steps", 9, "--out", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"--rates 1\.2 is not .*; the papers have 0\.2 to 0\.8"):
        command(monkeypatch, tmp_path, *small, "--rates", 1.2, "--out", tmp_path / "out")


def test_the_papers_rates_are_within_reach_of_the_default_backbone() -> None:
    module = create_timm_network(coco_network.NAME, {"img_size": coco_network.SIZE, "num_classes": 0})
    base = Network(module, output=Levels())
    base.spec = SimpleNamespace(macs=base.geometry.macs(base.dims), params=1)
    for rate, method in product(coco.RATES, coco.METHODS):
        assert coco.out_of_reach(base, rate, method) is None
    reason = "at 0.9: out of reach, as at most 0.867 of the backbone's MACs go in shape 'paper'"
    assert coco.out_of_reach(base, 0.9, "nuwa") == f"nuwa {reason}"
    assert coco.out_of_reach(base, 0.866, "nuwa") is None is not coco.out_of_reach(base, 0.868, "nuwa")


def test_a_wrong_path_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"has no annotations/, which COCO2017 has; unpack"):
        command(monkeypatch, tmp_path, "--checkpoint", tmp_path / "x.pth", "--out", tmp_path / "out")


def test_the_boxes_of_the_fast_rcnn_are_the_same_for_every_image_and_near_most_objects() -> None:
    images = ImageList(torch.rand(2, 3, 800, 800), [(800, 800)] * 2)
    (boxes, others), losses = coco_network.Grid().train()(images, {}, [{}, {}])
    assert torch.equal(boxes, others) and not losses and len(boxes) == 3414 and boxes.dtype == torch.float32
    assert boxes.min() >= 0 and boxes.max() <= 800 and bool((boxes[:, 2:] > boxes[:, :2]).all())
    for least, most, share in ((32, 64, 1 / 3), (64, 400, 0.95)):
        draw = torch.rand(4, 2000, generator=torch.Generator().manual_seed(0))
        side, stretch = least * (most / least) ** draw[0], 2 ** (draw[1] - 0.5)
        size = torch.stack([side * stretch, side / stretch], 1)
        corner = draw[2:].T * (800 - size)
        overlaps = box_iou(torch.cat([corner, corner + size], 1), boxes).amax(1)
        assert float((overlaps >= 0.5).float().mean()) == pytest.approx(share, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "proposals"), [("faster_rcnn", 1000), ("fast_rcnn", 201)])
def test_weights_of_the_swin_alone_are_put_into_the_detector(tmp_path: Path, function: str, proposals: int) -> None:
    file = tmp_path / "small.py"
    file.write_text(Path(coco_network.__file__).read_text().replace("= 800, 256, 91", "= 224, 16, 91"))
    body = timm.create_model(coco_network.NAME, num_classes=3)
    save_file(body.state_dict(), tmp_path / "swin.safetensors")
    made: Any = open_network(f"{file}:{function}", checkpoint=tmp_path / "swin.safetensors")
    state, wanted = made.state_dict(), body.state_dict()
    same = [name for name in wanted if f"detector.backbone.body.{name}" in state]
    assert len(same) > 150 and made.spec.builder.backbone_alone and made.spec.rest.proposals == proposals
    for name in same:
        torch.testing.assert_close(state[f"detector.backbone.body.{name}"], wanted[name])
