"""onnx.json: what is known of a model that came as an ONNX file, which lies beside it as model.onnx."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError
from edgevit.records.derivation import DataRecord, Fraction, Seed
from edgevit.records.documents import Reader
from edgevit.records.export import Batch
from edgevit.records.kinds import RecordKind
from edgevit.records.model import Preprocessing, Rejection, Sha256, Size, TargetClass

READER = Reader(CheckpointError, mend="copy the folder again, or import the ONNX file again with edgevit export")


@dataclass(frozen=True)
class ImportedBlock:
    """A block, as it was found in the graph."""

    name: str  # of its nodes up to the first dot or slash after it
    fusable: bool  # whether its attention is of dimensions that NVIDIA's compiler is known to fuse


@dataclass(frozen=True, kw_only=True)
class ImportedDocument:
    """A classifier, as its ONNX file and whoever imported it say."""

    file: str  # the name it had
    file_sha256: Sha256  # of that file
    weights_sha256: Sha256  # of model.onnx, by which engines know it
    batch: Batch
    opset: Size
    outputs: Size
    norms: tuple[str, ...]  # layer normalisations, by the names of their nodes before the slash
    blocks: tuple[ImportedBlock, ...]  # in order; empty: none were recognised
    classes: tuple[TargetClass, ...]  # target classes, each with its output; empty: nobody said which
    preprocessing: dict[str, Any]  # what `Preprocessing` has
    rejection: Rejection | None = None
    seed: Seed  # of the split of images, and the share of it that is for validation
    validation_fraction: Fraction
    data: DataRecord | None = None  # of the images it was imported with
    edgevit: str

    def fault(self) -> str | None:
        """What contradicts itself, as the end of a sentence that starts with the file's name; None: nothing."""
        names, columns = {c.name for c in self.classes}, {c.base_index for c in self.classes}
        if len(names) < len(self.classes) or len(columns) < len(self.classes):
            return "has a class twice"
        if max(columns, default=0) >= self.outputs:
            return f"has a class beyond its {self.outputs} outputs"
        return None


IMPORTED_KIND = RecordKind("onnx", ImportedDocument, READER)


def read_imported(file: Path) -> ImportedDocument:
    """Read onnx.json.

    Raises:
        CheckpointError: the file is missing, damaged, altered or of another schema.
    """
    read = IMPORTED_KIND.read(file)
    READER.checked(read.preprocessing, Preprocessing, f"{file}, preprocessing,")
    if fault := read.fault():
        raise CheckpointError(f"{file} {fault}; {READER.mend}")
    return read
