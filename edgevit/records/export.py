"""export.json: what the exported files are, and every check they passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from edgevit.errors import ExportError
from edgevit.records.class_names import ClassName
from edgevit.records.documents import Reader
from edgevit.records.kinds import PLACE, Place, RecordKind, Versions
from edgevit.records.model import Index, Rejection, Sha256, Size
from edgevit.records.names import onnx_name

READER = Reader(ExportError, mend="export the model again")

Batch = int | Literal["dynamic"]


@dataclass(frozen=True)
class ExportedFile:
    """One file of the export."""

    sha256: Sha256
    bytes: int
    nodes: dict[str, int] | None  # operators and how often each occurs; None: weights beside a file over 2 GB


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of every ONNX file."""

    name: str
    shape: tuple[int | str, ...]
    dtypes: dict[str, str]  # by file


@dataclass(frozen=True)
class OutputClass:
    """A target class, and its column in the logits."""

    name: str
    column: Index


@dataclass(frozen=True)
class ExportedModel:
    """The model that was exported."""

    timm_name: str | None  # None: it came as an ONNX file
    weights_sha256: Sha256  # of model.safetensors, or of model.onnx
    file: str | None = None  # the ONNX file that it came as


@dataclass(frozen=True)
class Padding:
    """What --pad-heads changed."""

    blocks: Index  # how many were padded
    macs_before: int
    macs: int
    widths: tuple[Size, ...]  # of every block's heads, afterwards


@dataclass(frozen=True)
class Range:
    """How a network uses fp16's range."""

    weights_largest: float
    weights_subnormal: float  # share of the weights that are not zero and below the smallest normal number
    weights_lost: float  # share of the weights that are not zero and become zero
    activations_largest: float
    activations_where: str  # the module or the node whose output that is
    overflowing: tuple[str, ...] = ()  # nodes of the file whose output fp16 cannot hold


@dataclass(frozen=True)
class Parity:
    """Logits of a file against those of torch in fp32."""

    error: float  # |difference| / |torch|, L2 over all logits
    tolerance: float
    largest_difference: float  # of one logit
    logits_scale: float  # root mean square of torch's logits
    images: int
    source: str  # "random", or the data they come from


@dataclass(frozen=True)
class FileAccuracy:
    """A file on real images of the target classes."""

    top1: float
    agreement: float  # share of images with torch's top-1
    agreement_least: float
    per_class: dict[ClassName, float | None]


@dataclass(frozen=True)
class AccuracyCheck:
    """Every form of the model on the same images, top-1 among the target classes."""

    data: str
    part: str
    images: int
    torch: float
    files: dict[str, FileAccuracy]  # by precision
    part_images: int | None = None  # all that the part has; None: an older edgevit did not tell


@dataclass(frozen=True)
class Fusion:
    """Attention blocks fused, of all of them."""

    fused: int
    blocks: int
    expected: int  # by the measured rule, `BlockDims.fusable`
    compiler: str
    version: str
    target: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What `export` did and saw. None: not checked; `warnings` says why."""

    folder: Place = field(metadata=PLACE)
    files: dict[str, ExportedFile]
    batch: Batch
    opset: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    classes: tuple[OutputClass, ...]
    rejection: Rejection | None = None  # when an image is called `other`
    preprocessing: dict[str, Any]
    model: ExportedModel
    padded: Padding | None
    fp32_modules: tuple[str, ...] = ()  # of model.fp16.onnx: what fp16 cannot hold, and is in fp32 there
    range: Range | None
    parity: dict[str, Parity]
    accuracy: AccuracyCheck | None
    fusion: Fusion | None
    warnings: tuple[str, ...]
    versions: Versions
    seconds: dict[str, float]

    def __post_init__(self) -> None:
        if missing := [name for label in self.parity if (name := onnx_name(label)) not in self.files]:
            raise ValueError(f"it tells of {missing[0]}, which is not among its files")
        if self.accuracy is not None and self.accuracy.files.keys() - self.parity.keys():
            raise ValueError("it tells of the accuracy of other files than it lists")


EXPORT_KIND = RecordKind("export", ExportRecord, READER)
