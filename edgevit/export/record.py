"""export.json: what the exported files are, and every check they passed.

Schema history: 1  first version
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgevit.export.fusion import Fusion
from edgevit.export.gates import AccuracyCheck, Parity
from edgevit.export.graph import Batch
from edgevit.export.precision import Range

SCHEMA = 1
RECORD = "export.json"


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
