"""onnx.json: the description of an imported ONNX file, which is model.onnx in the same folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from edgevit.errors import CheckpointError
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DataRecord, Fraction, JudgedPart, MapScore, Seed
from edgevit.records.documents import Reader
from edgevit.records.export import Batch
from edgevit.records.kinds import RecordKind
from edgevit.records.model import (
    Count,
    OutputKind,
    PreprocessingFields,
    Rejection,
    Sha256,
    Size,
    TargetClass,
    TimmPreprocessing,
)
from edgevit.records.precisions import FP32

_READER = Reader(CheckpointError, hint="copy the folder again, or import the ONNX file again with edgevit export")


@dataclass(frozen=True)
class ImportedBlock:
    """A block that was recognised in the graph."""

    name: str  # common prefix of the names of its nodes, up to a dot or slash
    fusable: bool  # whether NVIDIA's compiler fuses an attention of these dimensions


@dataclass(frozen=True, kw_only=True)
class ImportedDocument:
    """A model of images, as described by its ONNX file and the options of the import."""

    file: str  # original name of the imported file
    file_sha256: Sha256  # hash of the imported file
    weights_sha256: Sha256  # hash of model.onnx, which identifies the model in records of engines
    batch: Batch
    opset: Size
    # Precision of the file; if it is not fp32, the file is exported, judged and built as it is.
    precision: str = FP32.name
    output_kind: OutputKind = "logits"  # not boxes
    outputs: Size  # number of logits, channels of a map, or width of features
    norms: tuple[str, ...]  # names of the layer normalisations' nodes, up to the slash
    blocks: tuple[ImportedBlock, ...]  # recognised blocks in order; empty: none was recognised
    classes: tuple[TargetClass, ...]  # target classes with their outputs; empty: not stated, or no logits
    preprocessing: PreprocessingFields
    assumed: tuple[str, ...] = ()  # parts of the preprocessing that nothing states; empty for classes
    rejection: Rejection | None = None
    seed: Seed  # seed of the split of images
    validation_fraction: Fraction
    # Images given at the import, or those of the derived models beside it; None: neither.
    data: DataRecord | None = None
    # Which images of `data` it classifies correctly, by part; judged as a ready-made model.
    answers: dict[JudgedPart, RightImages] = field(default_factory=dict)
    # The same by each probe of its features, which is fitted to training images of `data`.
    probes: dict[str, dict[JudgedPart, RightImages]] = field(default_factory=dict)
    targets: MapScore | None = None  # score of its maps on test images of `data`; None: it gives none, or is not judged
    macs: Count | None = None  # MACs of one image; None: an older edgevit did not count them
    params: Count | None = None
    edgevit: str

    @property
    def assumed_text(self) -> str:
        """Say what of the preprocessing was assumed, and how to state it."""
        parts, options = (", ".join(f"{before}{part}" for part in self.assumed) for before in ("", "--"))
        return (
            f"{parts} of its preprocessing are assumed; import {self.file} to another folder with "
            f"{options.replace('_', '-')}"
        )

    @property
    def output_text(self) -> str:
        """Name what it puts out for an image, for people."""
        texts: dict[str, str] = {"logits": f"{self.outputs} outputs", "features": f"features of width {self.outputs}"}
        channels = "1 channel" if self.outputs == 1 else f"{self.outputs} channels"
        return texts.get(self.output_kind, f"a map of {self.output_kind} in {channels}")

    def is_judged_on(self, data: DataRecord, probe: Collection[str] = ()) -> bool:
        """Whether it was judged on these images; features by these probes."""
        if self.data is None or self.data.images_sha256 != data.images_sha256:
            return False
        if self.output_kind == "features":
            return bool(probe) and self.probes.keys() >= {*probe}
        return bool(self.answers) or self.targets is not None

    def fault(self) -> str | None:
        """Describe a contradiction, as the end of a sentence that starts with the file's name; None: there is none."""
        names, columns = {c.name for c in self.classes}, {c.base_index for c in self.classes}
        if len(names) < len(self.classes) or len(columns) < len(self.classes):
            return "has a class twice"
        if max(columns, default=0) >= self.outputs:
            return f"has a class beyond its {self.outputs} outputs"
        return None


IMPORTED_KIND = RecordKind("onnx", ImportedDocument, _READER)


def read_imported(file: Path) -> ImportedDocument:
    """Read onnx.json.

    Raises:
        CheckpointError: the file is missing, damaged, altered or of another schema.
    """
    document = IMPORTED_KIND.read(file)
    _READER.checked(document.preprocessing, TimmPreprocessing, f"{file}, preprocessing,")
    if fault := document.fault():
        raise CheckpointError(f"{file} {fault}; {_READER.hint}")
    return document
