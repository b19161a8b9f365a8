"""export.json: the exported files and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgevit.errors import ExportError
from edgevit.records.class_names import ClassName
from edgevit.records.documents import Reader
from edgevit.records.kinds import PLACE, Place, RecordKind, Versions
from edgevit.records.model import Index, PreprocessingFields, Rejection, Sha256, Size
from edgevit.records.names import onnx_name
from edgevit.records.precisions import FP32

_READER = Reader(ExportError, hint="export the model again")

Batch = int | Literal["dynamic"]


@dataclass(frozen=True)
class ExportedFile:
    """One file of the export."""

    sha256: Sha256
    bytes: int
    nodes: dict[str, int] | None  # number of nodes by operator; None: an external file of weights, over 2 GB


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of every ONNX file."""

    name: str
    shape: tuple[int | str, ...]
    dtypes: dict[str, str]  # data type in each file, by the file's name


@dataclass(frozen=True)
class OutputClass:
    """A target class and its column in the logits."""

    name: str
    column: Index


@dataclass(frozen=True)
class ExportedModel:
    """The model that was exported."""

    timm_name: str | None  # timm's name of the network; None: an imported ONNX file
    weights_sha256: Sha256  # hash of model.safetensors, or of an imported model.onnx
    file: str | None = None  # name of the imported ONNX file; None: the model was not imported


@dataclass(frozen=True)
class Padding:
    """The changes by --pad-heads."""

    blocks: Index  # number of padded blocks
    macs: int
    widths: tuple[Size, ...]  # width of the heads of each block after padding


@dataclass(frozen=True)
class Range:
    """The use of fp16's range by a network."""

    weights_largest: float
    weights_subnormal: float  # share of the weights that are nonzero and below the smallest normal number
    weights_lost: float  # share of the nonzero weights that become zero
    activations_largest: float
    activations_where: str  # name of the module or node whose output has the largest value
    overflowing: tuple[str, ...] = ()  # nodes whose output overflows fp16


@dataclass(frozen=True)
class Parity:
    """Outputs of a file compared with those of torch in fp32."""

    error: float  # relative error |difference| / |torch|, in L2 over all outputs
    tolerance: float
    largest_difference: float  # largest absolute difference of one value
    logits_scale: float  # root mean square of torch's outputs
    images: int
    source: str  # "random" inputs, or the data of the images


@dataclass(frozen=True)
class FileAccuracy:
    """How well a file agrees with torch, and, if it gives logits, its accuracy on images of the target classes."""

    top1: float | None
    agreement: float  # mean score with torch's answers as targets; of logits the share of images with torch's class
    agreement_least: float  # smallest accepted agreement
    per_class: dict[ClassName, float | None]


@dataclass(frozen=True)
class AccuracyCheck:
    """Agreement of each file with torch on the same images, and the accuracy of both, if they give logits."""

    data: str
    part: str
    images: int
    torch: float | None  # top-1 of torch among the target classes; None: the outputs are not logits
    files: dict[str, FileAccuracy]  # agreement and accuracy of each file, by precision
    part_images: int | None = None  # number of all images of the part; None: not recorded


@dataclass(frozen=True)
class Fusion:
    """The number of attentions that a compiler fuses."""

    fused: int
    blocks: int
    expected: int  # number of attentions that fuse by the measured rule, `BlockDims.fusable`
    compiler: str
    version: str
    target: str
    note: str


@dataclass(frozen=True)
class QuantisedLayer:
    """A linear layer of a file in INT8."""

    name: str  # name of the layer's node
    share: float  # MACs of the layer as a share of those of all linear layers
    int8: bool  # whether the layer is in INT8; False: it stays in floating point
    divergence: float | None  # divergence of the outputs from fp32 with this layer alone in INT8; None: not measured


@dataclass(frozen=True)
class QuantisedStep:
    """A choice of layers that was judged."""

    floating: Index  # number of linear layers in floating point
    share: float  # share of the linear layers' MACs that is in INT8
    top1: float | None  # top-1 among the target classes; None: the outputs are not logits, or not finite
    agreement: float  # mean score with the fp32 answers as targets
    # Name of the class with the largest loss; None: the outputs are not logits, or not finite.
    worst_class: ClassName | None
    # Of logits the loss of top-1 that fp32 probabilities predict; else 1 - agreement; None: not finite.
    loss: float | None
    loss_least: float | None  # lower end of the loss's 95 % interval, open above; None: the outputs are not finite
    failure: str | None  # why this choice was rejected; None: it was accepted


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """How model.int8.onnx was made. Judged through ONNX Runtime, whose kernels differ from TensorRT's."""

    method: str  # method that determines the ranges of inputs
    images: Index  # number of images of the training part for calibration
    most_images: Index  # number of calibration images that was requested
    data: str
    rescaled: Index  # number of layers whose inputs were centred and scaled
    share: float  # share of the linear layers' MACs that is in INT8
    layers: tuple[QuantisedLayer, ...]
    validation_images: Index  # number of validation images that judged the choices of layers
    other_images: Index  # number of training images outside the calibration that judged them, too
    fp32: float | None  # top-1 of the fp32 file on the judging images; None: the outputs are not logits
    steps: tuple[QuantisedStep, ...]  # the choices of layers, in the order of trial


@dataclass(frozen=True)
class WholeDetector:
    """A whole detector as one file: what it finds, compared with torch in fp32."""

    file: str
    images: Index
    boxes: Index  # number of boxes that torch finds in these images
    same: Index  # number of these boxes that the file finds, too, with equal label, place and score
    torch: float | None = None  # average precision of torch's boxes in images with annotations; None: there are none
    onnx: float | None = None
    judged_images: Index = 0


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """The result of `export`. None: not checked; `warnings` has the reason."""

    folder: Place = field(metadata=PLACE)
    files: dict[str, ExportedFile]
    batch: Batch
    opset: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    classes: tuple[OutputClass, ...]
    rejection: Rejection | None = None  # rule for images of other classes; None: no image is classified as `other`
    preprocessing: PreprocessingFields
    model: ExportedModel
    padded: Padding | None
    fp32_modules: tuple[str, ...] = ()  # modules of model.fp16.onnx in fp32, because they overflow fp16
    range: Range | None
    parity: dict[str, Parity]
    accuracy: AccuracyCheck | None
    fusion: Fusion | None
    # How the INT8 file was made; None: there is none, or it was imported as it is.
    quantisation: Quantisation | None = None
    whole: WholeDetector | None = None  # check of the whole detector as one file; None: not requested
    warnings: tuple[str, ...]
    versions: Versions
    seconds: dict[str, float]

    @property
    def reference(self) -> str:
        """The precision of the file that engines are compared with: fp32, unless a file is exported as it is."""
        return FP32.name if FP32.name in self.parity else next(iter(self.parity))

    def __post_init__(self) -> None:
        if missing := [name for label in self.parity if (name := onnx_name(label)) not in self.files]:
            raise ValueError(f"parity names {missing[0]}, which is not in files")
        if self.accuracy is not None and self.accuracy.files.keys() - self.parity.keys():
            raise ValueError("accuracy names files that are not in parity")


# Schema 1 also had the MACs before padding, which model.json states.
EXPORT_KIND = RecordKind("export", ExportRecord, _READER, schema=2)
