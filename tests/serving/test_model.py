from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import some_engines

from edgevit.errors import CheckpointError, EngineError, ExportError, OptionError
from edgevit.records.export import OutputClass
from edgevit.records.model_folder import ModelFolder
from edgevit.serving.model import find_served


def test_the_file_is_that_of_the_precision_and_fp16_by_default(served_folder: Path) -> None:
    assert [find_served(served_folder, p).file.name for p in (None, "fp32")] == ["model.fp16.onnx", "model.fp32.onnx"]
    with pytest.raises(CheckpointError, match=r"model\.int8\.onnx is missing, and .*: try another --precision"):
        find_served(served_folder, "int8")


def test_a_folder_that_was_not_exported_is_refused_with_the_command(served_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(served_folder, tmp_path / "m")
    shutil.rmtree(tmp_path / "m" / "export")
    with pytest.raises(CheckpointError, match=r"run `edgevit export .*` first"):
        find_served(tmp_path / "m", None)


def test_an_engine_must_be_unaltered_and_of_the_precision(served_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(served_folder, tmp_path / "m")
    ends = find_served(served_folder, None)
    record = some_engines.add(
        tmp_path / "m", weights_sha256=ModelFolder(served_folder).weights_sha256(), inputs=(ends.images,),
        outputs=ends.outputs,
    )  # fmt: skip
    served = find_served(record.path, None)
    assert (served.file, served.images, served.folder) == (record.path, ends.images, tmp_path / "m")
    assert served.engine == record and served.export.preprocessing == ends.export.preprocessing
    with pytest.raises(OptionError, match="is fp16, and --precision is fp32"):
        find_served(record.path, "fp32")
    record.path.write_bytes(b"another")
    with pytest.raises(EngineError, match="was altered"):
        find_served(record.path, None)


def test_the_name_is_that_of_the_folder_however_it_is_typed(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for inside, typed in ((".", "."), ("export", "..")):
        monkeypatch.chdir(served_folder / inside)
        assert find_served(Path(typed), None).name == "m"


def test_classes_that_a_file_of_names_cannot_hold_are_refused(served_folder: Path, headless_folder: Path) -> None:
    served = find_served(served_folder, None)
    served.check_classes("deepstream", ";")
    odd = replace(served, export=replace(served.export, classes=(OutputClass("cat;dog", 0),)))
    with pytest.raises(ExportError, match="'cat;dog' contains ';'"):
        odd.check_classes("deepstream", ";")
    nameless = replace(served, export=replace(served.export, classes=()))
    with pytest.raises(ExportError, match="does not name its own; `edgevit base --base-classes FILE` names those"):
        nameless.check_classes("deepstream", ";")
    with pytest.raises(ExportError, match=r"serves classes, and .* gives features; --triton serves"):
        find_served(headless_folder, "fp32").check_classes("cpp", "\n")
