from __future__ import annotations

from pathlib import Path

import pytest
from foreign_onnx import PREPARED, write_vit

import edgevit
from edgevit.errors import ExportError, OptionError, OutputError
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256
from edgevit.serving.package import APPLICATIONS
from edgevit.serving.request import NAMES


def test_every_flag_has_its_application() -> None:
    assert tuple(APPLICATIONS) == NAMES


def test_a_package_says_what_it_was_made_of_and_is_not_overwritten(served_folder: Path, tmp_path: Path) -> None:
    out = edgevit.package(served_folder, triton=True, out=tmp_path / "o")
    text = (out / "README.md").read_text()
    assert ModelFolder(served_folder).weights_sha256() in text
    assert file_sha256(out / "m" / "1" / "model.onnx") in text
    for told in (
        "# m for Triton Inference Server",
        "crop_pct: 1.0",
        "logits is below 7.",
        "Nothing in this folder was",
    ):
        assert told in text
    with pytest.raises(OutputError, match="exists and is not overwritten"):
        edgevit.package(served_folder, triton=True, out=out)


def test_a_package_that_cannot_be_made_leaves_nothing(headless_folder: Path, tmp_path: Path) -> None:
    for application in ("deepstream", "python", "cpp"):
        with pytest.raises(ExportError, match=r"serves classes, and .* gives features; --triton serves"):
            edgevit.package(headless_folder, precision="fp32", out=tmp_path / "o", **{application: True})
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_preprocessing_is_assumed_is_not_packaged(tmp_path: Path) -> None:
    edgevit.export(write_vit(tmp_path / "map.onnx", depth=1, output="map"), accuracy=False)
    message = (
        r"std, crop_pct of its preprocessing are assumed; import map.onnx to another folder with .*--std, --crop-pct"
    )
    with pytest.raises(ExportError, match=message):
        edgevit.package(tmp_path / "map", triton=True, out=tmp_path / "o")


def test_an_imported_file_is_packaged_under_the_names_of_its_export(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "foreign.onnx", depth=1)
    edgevit.export(file, accuracy=False, **PREPARED)
    out = edgevit.package(tmp_path / "foreign", triton=True, precision="fp32", out=tmp_path / "o")
    assert 'name: "images" data_type: TYPE_FP32' in (out / "foreign" / "config.pbtxt").read_text()
    assert "of foreign.onnx, weights " in (out / "README.md").read_text()
    with pytest.raises(OptionError, match="a package is for one of"):
        edgevit.package(tmp_path / "foreign", out=tmp_path / "p")
