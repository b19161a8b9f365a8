"""export.json: what the exported files are, and every check they passed.

Schema history: 1  first version
                2  rejection; exports of schema 1 are still read: they have none
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgevit.errors import ExportError
from edgevit.export.fusion import Fusion
from edgevit.export.gates import AccuracyCheck, FileAccuracy, Parity
from edgevit.export.graph import Batch
from edgevit.export.precision import Range

SCHEMA = 2
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


def _tensors(listed: list[dict[str, Any]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(t["name"], tuple(t["shape"]), t["dtypes"]) for t in listed)


def _accuracy(data: dict[str, Any]) -> AccuracyCheck:
    return AccuracyCheck(**{**data, "files": {name: FileAccuracy(**f) for name, f in data["files"].items()}})


def _parsed(folder: Path, data: Mapping[str, Any]) -> ExportReport:
    return ExportReport(
        folder=folder,
        files={name: ExportedFile(**f) for name, f in data["files"].items()},
        inputs=_tensors(data["inputs"]),
        outputs=_tensors(data["outputs"]),
        classes=tuple(data["classes"]),
        rejection=data["rejection"] if data["schema"] == SCHEMA else None,
        range=Range(**data["range"]) if data["range"] else None,
        parity={name: Parity(**p) for name, p in data["parity"].items()},
        accuracy=_accuracy(data["accuracy"]) if data["accuracy"] else None,
        fusion=Fusion(**data["fusion"]) if data["fusion"] else None,
        warnings=tuple(data["warnings"]),
        **{name: data[name] for name in ("batch", "opset", "preprocessing", "model", "padded", "versions", "seconds")},
    )


def read_report(folder: Path) -> ExportReport:
    """Read the record of an export folder.

    Raises:
        ExportError: it is missing, or not what `export` writes.
    """
    path = folder / RECORD
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] in (1, SCHEMA):
            return _parsed(folder, data)
        why = f"its schema is {data['schema']!r}, this edgevit reads 1 and {SCHEMA}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    raise ExportError(f"{path} cannot be read ({why}); export the model again")
