"""A whole detector as one file finds what torch finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from detectors import annotate_by, write_detectors
from small_models import write_derived
from torchvision.transforms.functional import to_tensor

import edgevit
from benchmarks import scenes
from edgevit.cli.export import _whole_line
from edgevit.errors import ExportError, OptionError
from edgevit.exporting import whole
from edgevit.network.folder import load
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("own_cache")


RETINA = (  # whose untrained head gives all boxes one score, so that any of them may be chosen
    "        return RetinaNet(backbone, 4, anchor_generator=anchors, **sizes)\n",
    """        made = RetinaNet(
            backbone, 4, anchor_generator=anchors, score_thresh=0.0, detections_per_img=10, **sizes
        )
        for part in made.head.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.normal_(part.weight, std=0.1)
        return made
""",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    file = write_detectors(folder)
    edgevit.base(f"{file}:build", output="boxes", out=folder / "build")
    scenes.render(folder / "coco", train=8, val=6, size=48)
    annotate_by(load(folder / "build").module.detector, folder / "coco")
    return folder


@pytest.mark.slow
def test_the_file_is_checked_by_boxes_and_by_average_precision(home: Path) -> None:
    report = edgevit.export(home / "build", data=home / "coco", whole=True, fp16=False, accuracy=True)
    seen, path = report.whole, home / "build" / "export" / "detector.onnx"
    assert seen is not None and seen.file == "detector.onnx" in report.files and seen.same == seen.boxes > 6
    assert seen.torch is not None and seen.torch > 0.9 and seen.onnx == pytest.approx(seen.torch, abs=0.01)
    assert "finds" in _whole_line(report) and "3x64x64" in _whole_line(report)
    assert [f.name for f in ModelFolder(home / "build").export.onnx_files()] == ["model.fp32.onnx"], (
        "not to be measured"
    )
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(4))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(None, {"image": image.numpy()}), strict=True))
    with torch.inference_mode():
        (expected,) = load(home / "build").module.detector.eval()([image])  # type: ignore[operator]
    assert names == ["boxes", "labels", "scores"]
    for name, values in expected.items():
        torch.testing.assert_close(torch.from_numpy(answers[name]), values, rtol=1e-3, atol=1e-3)
    assert {p.key for p in onnx.load(path).metadata_props} >= {"base", "edgevit_version"}
    with pytest.raises(OptionError, match=r"detector\.onnx was judged when it was exported; give the model folder"):
        edgevit.evaluate(path, home / "coco")


@pytest.mark.slow
@pytest.mark.parametrize("function", ["masks", "retina", "fast"])
def test_other_kinds_of_detectors_are_written_too(home: Path, tmp_path: Path, function: str) -> None:
    text = (home / "my_detector.py").read_text()
    assert RETINA[0] in text
    (tmp_path / "my_detector.py").write_text(text.replace(*RETINA))
    edgevit.base(f"{tmp_path / 'my_detector.py'}:{function}", output="boxes", out=tmp_path / "model")
    report = edgevit.export(tmp_path / "model", whole=True, fp16=False, accuracy=False)
    seen = report.whole
    assert seen is not None and seen.same == seen.boxes > 0 and (seen.torch, seen.onnx) == (None, None)
    names = {output.name for output in onnx.load(tmp_path / "model" / "export" / "detector.onnx").graph.output}
    assert names == {"boxes", "labels", "scores"} | ({"masks"} if function == "masks" else set())


def test_what_cannot_be_written_or_differs_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"data": home / "coco", "whole": True, "fp16": False, "accuracy": False}
    monkeypatch.setattr(whole, "SCORE_ERROR", -1.0)
    with pytest.raises(ExportError, match=r"detector\.onnx finds 0 of the \d+ boxes that torch finds in \d images"):
        edgevit.export(home / "build", **options)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no translation\nof an operator")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    network: Any = load(home / "build")
    with pytest.raises(
        ExportError, match=r"cannot write the whole FasterRCNN \(no translation of an operator\); leave"
    ):
        whole.write_detector(network.module, home / "x.onnx", (3, 64, 64), {})


def test_pictures_of_other_sizes_have_boxes_in_their_own_pixels(home: Path) -> None:
    network: Any = load(home / "build").eval()
    pictures = [torch.rand(3, 40, 90), to_tensor(torch.zeros(64, 64, 3).numpy())]
    with torch.inference_mode():
        expected = network.module.detector(pictures)
        actual = whole._whole_images(network.module, network.module.detector)(pictures)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one["boxes"], other["boxes"], rtol=1e-3, atol=0.1)


def test_a_classifier_has_no_boxes(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--whole is for a detector, and .*derived is none; leave it out"):
        edgevit.export(write_derived(tmp_path / "derived", 16, 16, depth=1), whole=True)
