"""A file in INT8 is calibrated on training images, judged on validation images, and keeps what costs too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import write_derived

from edgevit.board.models import find_file
from edgevit.errors import ExportError, OptionError, UnknownNameError
from edgevit.exporting.current import current_export
from edgevit.exporting.int8 import quantising
from edgevit.exporting.onnx import export_files
from edgevit.exporting.request import Calibration, FilesRequest
from edgevit.network.folder import load, save
from edgevit.network.model import Model
from edgevit.records.model_folder import ModelFolder

FEW = Calibration(images=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_derived(tmp_path_factory.mktemp("int8") / "m", 32, 32, depth=1)


def request(folder: Path, **options: object) -> FilesRequest:
    return FilesRequest(model=folder, precision="int8", calibration=FEW, max_images=30, **options)  # type: ignore[arg-type]


def test_the_file_is_written_judged_and_found(folder: Path) -> None:
    report = export_files(request(folder))
    made = report.quantisation
    assert made is not None and sorted(report.files) == [f"model.{p}.onnx" for p in ("fp16", "fp32", "int8")]
    assert (made.method, made.images, made.share, len(made.layers)) == ("max", 32, 1.0, 5)
    step = made.steps[-1]
    assert step.failure is None and step.agreement >= 0.98 and step.loss is not None and 0 <= step.loss < 0.01
    data = ModelFolder(folder).derivation().data.images
    assert made.validation_images == data.validation and made.images + made.other_images == data.train
    assert report.accuracy is not None and report.accuracy.files["int8"].agreement >= 0.9
    assert report.files["model.int8.onnx"].nodes is not None
    assert report.files["model.int8.onnx"].nodes["QuantizeLinear"] == 5
    assert find_file(folder, "int8", None).path.name == "model.int8.onnx"
    kept = current_export(request(folder))
    assert kept == ModelFolder(folder).export.record()
    again = export_files(request(folder))
    assert again.files["model.int8.onnx"] == report.files["model.int8.onnx"], "it is deterministic"


@pytest.mark.slow
def test_layers_with_outliers_stay_in_floating_point(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantising, "rescale", lambda *_: 0)  # which would mend it
    model = load(folder)
    with torch.no_grad():
        (block,) = model.block_modules
        block.mlp.fc2.weight *= 20
        block.mlp.fc1.bias[3] = 30_000.0  # after GELU, so that one step is 236
        block.mlp.fc2.weight[:, 3] = 0.0
    derivation = ModelFolder(folder).derivation()
    save(Model(model, model.spec, model.release), tmp_path / "m", derivation=derivation)
    report = export_files(request(tmp_path / "m", fp16=False))
    made, nodes = report.quantisation, report.files["model.int8.onnx"].nodes
    assert made is not None and [layer.name for layer in made.layers if not layer.int8] == ["blocks.0.mlp.fc2/MatMul"]
    assert made.steps[0].failure is not None and made.steps[0].floating == 0
    worst = max(made.layers, key=lambda layer: layer.divergence or 0)
    assert worst.name == "blocks.0.mlp.fc2/MatMul" and made.share == pytest.approx(1 - worst.share)
    assert nodes is not None and nodes["QuantizeLinear"] == 4 and len(made.steps) > 1


def test_what_cannot_be_calibrated_is_one_line(tmp_path: Path, folder: Path, image_folder: Callable[..., Path]) -> None:
    few = image_folder(tmp_path / "few", {"train/3": 4, "train/5": 4, "train/8": 4, "val/3": 2, "val/5": 2, "val/8": 2})
    with pytest.raises(ExportError, match=r"\d+ training images in \S+few, and INT8 is calibrated on 16 or more"):
        export_files(request(folder, data=few))
    with pytest.raises(UnknownNameError, match="calibration 'mean'"):
        Calibration(method="mean")
    with pytest.raises(UnknownNameError, match="precision 'int4'"):
        replace(request(folder), precision="int4").check()
    with pytest.raises(OptionError, match="--opset 17 has no Q/DQ of fp16"):
        request(folder, opset=17).check()
