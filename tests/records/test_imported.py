"""onnx.json reads back as it was written; what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgevit.errors import CheckpointError
from edgevit.records.imported import ImportedBlock, ImportedDocument
from edgevit.records.model import TargetClass
from edgevit.records.model_folder import ModelFolder

DOCUMENT = ImportedDocument(
    file="other.onnx",
    file_sha256="a" * 64,
    weights_sha256="b" * 64,
    batch="dynamic",
    opset=17,
    outputs=10,
    norms=("blocks.0.norm1",),
    blocks=(ImportedBlock("blocks.0", True),),
    classes=(TargetClass("cat", 3), TargetClass("dog", 5)),
    preprocessing={"input_size": [3, 32, 32], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3,
                   "crop_pct": 0.9, "crop_mode": "center"},
    seed=42,
    validation_fraction=0.1,
    edgevit="0.1.0",
)  # fmt: skip


def test_it_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    assert not folder.is_imported
    folder.write_imported(DOCUMENT)
    assert folder.is_imported and folder.imported() == DOCUMENT and folder.weights_sha256() == "b" * 64


def test_its_outputs_are_named_for_people() -> None:
    texts = [replace(DOCUMENT, output_kind=kind).output_text for kind in ("logits", "features", "classes")]
    assert texts == ["10 outputs", "features of width 10", "a map of classes in 10 channels"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": (TargetClass("cat", 3), TargetClass("cat", 4))}, "has a class twice"),
        ({"classes": (TargetClass("cat", 10),)}, "has a class beyond its 10 outputs"),
        ({"preprocessing": {}}, "preprocessing"),
        ({"batch": "any"}, "batch"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    folder = ModelFolder(tmp_path)
    folder.write_imported(replace(DOCUMENT, **change))
    with pytest.raises(CheckpointError, match=said):
        folder.imported()
