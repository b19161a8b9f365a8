"""export.json: what the exported files are, and every check they passed.

Schema history: 1  first version
                2  rejection; exports of schema 1 are still read: they have none
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgevit.errors import ExportError
from edgevit.export.fusion import Fusion
from edgevit.export.gates import AccuracyCheck, Parity
from edgevit.export.graph import Batch
from edgevit.export.precision import Range
from edgevit.folder.documents import Reader

SCHEMA = 2
RECORD = "export.json"
READER = Reader(ExportError, mend="export the model again")


@dataclass(frozen=True)
class ExportedFile:
    """One file of the export."""

    sha256: str
    bytes: int
    nodes: dict[str, int] | None  # operators and how often each occurs; None: weights beside a file over 2 GB


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of every ONNX file."""

    name: str
    shape: tuple[int | str, ...]
    dtypes: dict[str, str]  # by file


@dataclass(frozen=True)
class ExportReport:
    """What `export` did and saw. None: not checked; `warnings` says why."""

    folder: Path
    files: dict[str, ExportedFile]
    batch: Batch
    opset: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    classes: tuple[dict[str, Any], ...]  # name and column in the logits
    rejection: dict[str, Any] | None  # score and threshold below which an image is called `other`
    preprocessing: dict[str, Any]
    model: dict[str, Any]
    padded: dict[str, Any] | None  # what --pad-heads changed
    range: Range | None
    parity: dict[str, Parity]
    accuracy: AccuracyCheck | None
    fusion: Fusion | None
    warnings: tuple[str, ...]
    versions: dict[str, str]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        del record["folder"]  # where it lies says nothing about it, and folders move
        return {"schema": SCHEMA, **record}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"


def _fault(report: ExportReport) -> str | None:
    """What contradicts itself, as the end of a sentence that starts with the file's name; None: nothing."""
    if missing := [name for label in report.parity if (name := f"model.{label}.onnx") not in report.files]:
        return f"tells of {missing[0]}, which is not among its files"
    if report.accuracy is not None and report.accuracy.files.keys() - report.parity.keys():
        return "tells of the accuracy of other files than it lists"
    return None


def read_report(folder: Path) -> ExportReport:
    """Read the record of an export folder.

    Raises:
        ExportError: it is missing, or not what `export` writes.
    """
    file = folder / RECORD
    content = READER.json(file, dict[str, Any], schemas=(1, SCHEMA))
    earlier = {"rejection": None} if content["schema"] == 1 else {}
    report = READER.checked({**content, **earlier, "folder": str(folder)}, ExportReport, str(file))
    if fault := _fault(report):
        raise ExportError(f"{file} {fault}; {READER.mend}")
    return report
