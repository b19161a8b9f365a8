from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from model_folders import export_of

from edgevit.errors import ExportError
from edgevit.records.export import EXPORT_KIND, AccuracyCheck, ExportedFile, FileAccuracy, Parity

FP32 = {"model.fp32.onnx": ExportedFile("d" * 64, 10, {"Add": 3})}
PARITY = {"fp32": Parity(1e-7, 1e-4, 1e-6, 3.0, 4, "random")}


def test_a_record_reads_back_as_it_was_written_and_does_not_say_where_it_lies() -> None:
    record = replace(export_of(FP32), parity=PARITY)
    content = json.loads(EXPORT_KIND.text(record))
    assert EXPORT_KIND.checked(content, "it", folder=Path()) == record and "folder" not in content


def test_checks_of_files_that_are_not_listed_are_one_line() -> None:
    content = EXPORT_KIND.content(replace(export_of(FP32), parity=PARITY))
    with pytest.raises(ExportError, match=r"it is wrong: parity names model\.fp32\.onnx, which is not in files"):
        EXPORT_KIND.checked({**content, "files": {}}, "it", folder=Path())
    accuracy = AccuracyCheck("d", "test", 3, 0.5, {"fp16": FileAccuracy(0.5, 1.0, 0.9, {})})
    with pytest.raises(ValueError, match="accuracy names files that are not in parity"):
        replace(export_of(FP32), parity=PARITY, accuracy=accuracy)
