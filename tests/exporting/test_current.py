"""An export that is up to date is not made again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_progress import RecordedProgress

from edgevit.errors import ExportError
from edgevit.exporting.current import current_export
from edgevit.exporting.gates import Tolerances
from edgevit.exporting.request import FilesRequest
from edgevit.records.export import EXPORT_KIND, ExportRecord
from edgevit.records.model import Rejection
from edgevit.records.model_folder import ModelFolder


@pytest.fixture(scope="module")
def copied(exported: tuple[Path, ExportRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with an export, to be looked at and not changed."""
    return Path(shutil.copytree(exported[0], tmp_path_factory.mktemp("variants") / "derived"))


def is_reused(folder: Path, **options: Any) -> bool:
    heard = RecordedProgress()
    current_export(FilesRequest(model=folder, **options), heard)
    return any("up to date: reused" in text for text in heard.notes)


@pytest.mark.slow
def test_an_export_is_reused_until_the_model_the_options_or_its_files_change(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    before = (folder / "export" / "export.json").read_bytes()
    assert is_reused(folder) and is_reused(folder, accuracy=False) and is_reused(folder, max_images=10)
    assert is_reused(folder, fp16=False), "what is there besides does no harm"
    assert (folder / "export" / "export.json").read_bytes() == before
    quick = {"accuracy": False, "fp16": False}
    assert not is_reused(folder, batch=2, **quick) and is_reused(folder, batch=2, **quick)
    assert not is_reused(folder, batch=2, accuracy=False), "fp16 is missing now"
    assert not is_reused(folder, opset=17, **quick)  # which tests of variants trace, too
    assert not is_reused(folder, opset=17, pad_heads=True, **quick)
    (folder / "export" / "model.fp32.onnx").write_bytes(b"altered")
    same = {"opset": 17, "pad_heads": True, **quick}
    assert not is_reused(folder, **same)
    record = folder / "export" / "export.json"
    record.write_text(record.read_text().replace('"schema": 1', '"schema": 0'))
    assert not is_reused(folder, **same)


def test_an_export_whose_accuracy_was_not_checked_is_made_anew_where_there_are_images_now(
    copied: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    report = replace(
        ModelFolder(folder).export.record(), accuracy=None, warnings=("accuracy not checked: the images are gone",)
    )
    (folder / "export" / "export.json").write_text(EXPORT_KIND.text(report))
    assert is_reused(folder)
    assert not is_reused(folder, data="digits", max_images=20)
    assert ModelFolder(folder).export.record().accuracy is not None


@pytest.mark.slow
def test_an_export_judged_on_a_sample_is_made_anew_where_all_images_are_asked_for(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    everything = ModelFolder(folder).export.record().accuracy
    assert everything and everything.images == everything.part_images
    assert is_reused(folder, max_images=10 * everything.images), "there are no more"
    file = folder / "export" / "export.json"
    for part_images, reused in ((None, True), (everything.images, False)):
        sample = replace(everything, images=20, part_images=part_images)
        file.write_text(EXPORT_KIND.text(replace(ModelFolder(folder).export.record(), accuracy=sample)))
        assert is_reused(folder) == reused
    after = ModelFolder(folder).export.record().accuracy
    assert after and after.images == everything.images


@pytest.mark.slow
def test_an_export_of_other_weights_or_judged_by_less_is_made_anew(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    report = ModelFolder(folder).export.record()
    for changed in (
        replace(report, model=replace(report.model, weights_sha256="0" * 64)),
        replace(report, accuracy=None),
        replace(report, rejection=Rejection("logsumexp", 1.0, 0.1)),
    ):
        (folder / "export" / "export.json").write_text(EXPORT_KIND.text(changed))
        assert not is_reused(folder, max_images=20)
    with pytest.raises(ExportError, match="at most 1e-09 is allowed"):
        current_export(FilesRequest(model=folder, tolerances=Tolerances(fp16_error=1e-9)))
