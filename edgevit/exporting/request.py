"""Requests of an export of files, and of an evaluation on this machine.

They are checked by names, numbers and paths, before torch is imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from edgevit.data.request import DATA_KINDS, BaseClasses, Classes, GroupBy, SkipBadImages, check_data, check_pictures
from edgevit.errors import CheckpointError, EngineError, OptionError, UnknownNameError
from edgevit.network.builder import is_builder
from edgevit.network.device import check_device_name
from edgevit.network.request import BaseOptions, GivenPreprocessing, check_model_folder, check_preprocessing
from edgevit.numbers import COUNT, check_number
from edgevit.records.export import Batch
from edgevit.records.model import OutputKind
from edgevit.records.model_folder import ModelFolder, model_of
from edgevit.records.names import SPEC, WEIGHTS_ALONE, WHOLE_DETECTOR, suffix_of
from edgevit.records.precisions import FP16, FP32, INT8
from edgevit.records.release import is_release
from edgevit.records.writing import refuse_existing
from edgevit.request import CHECKS, COMPUTING, DATA, FILES, JUDGING, PREPROCESSING, Nested, Option
from edgevit.train.settings import Workers

Part = Literal["test", "validation"]
_PARTS: tuple[Part, ...] = ("test", "validation")
_PROBES = ("knn", "linear")  # what features are judged by, where there are labels
# What an imported file may put out, by the words of `derive --output`.
OUTPUT_KINDS: Mapping[str, OutputKind] = {
    "classes": "logits", "features": "features", "map": "values", "map:foreground": "foreground",
    "map:classes": "classes",
}  # fmt: skip
_CROP_MODES = ("center", "squash", "border")
ONNX, ENGINE = ".onnx", ".engine"  # suffixes of files of whole models
QUANTISED_OPSET = 19  # QuantizeLinear takes fp16 from here on
OPSETS = range(17, 21)  # LayerNormalization is new in 17; JetPack 6's parser reads up to 20

_Split = Annotated[
    str, Option("Part of the images to evaluate on: test or validation.", DATA, name="--split", common=True)
]


def _read_batch(text: str, _: Mapping[str, Any]) -> Batch:
    """Read a number of images, or `dynamic`."""
    if text == "dynamic":
        return "dynamic"
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"--batch {text} is neither a number of images nor 'dynamic'; try 1")
    return int(text)


def _read_probes(text: str, _: Mapping[str, Any]) -> tuple[str, ...]:
    """Read names of probes that are separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in _PROBES:
            raise UnknownNameError("probe", name, _PROBES)
    return names


def read_size(text: str, _: Mapping[str, Any]) -> tuple[int, int, int]:
    """Read channels, height and width."""
    parts = text.lower().replace(",", "x").split("x")  # commas: a list in a file
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise OptionError(f"--input-size {text} is not channels, height and width; try 3x224x224")
    channels, height, width = map(int, parts)
    return channels, height, width


Probe = Annotated[
    tuple[str, ...],
    Option(
        "Classifiers that are fitted to features and judged: knn, linear, or both, separated by commas.",
        DATA,
        read=_read_probes,
        metavar="NAME[,...]",
        common=True,
    ),
]


@dataclass(frozen=True)
class Tolerances:
    """Tolerances of a file against the torch model.

    Raises:
        OptionError: a number is NaN, infinite, negative, or not a share.
    """

    fp32_error: float = FP32.error  # relative L2 of the logits; 1e-6 is usual
    fp16_error: Annotated[
        float,
        Option("Largest allowed relative L2 error of the fp16 logits against torch.", CHECKS, name="--fp16-tolerance"),
    ] = FP16.error  # 1e-3 is usual
    fp32_agreement: float = FP32.agreement  # share of real images with the same top-1
    int8_error: float = INT8.error
    int8_agreement: float = INT8.agreement
    fp16_agreement: Annotated[
        float,
        Option(
            "Smallest allowed share of images on which fp16 and torch predict the same class.",
            CHECKS,
            name="--min-agreement",
        ),
    ] = FP16.agreement

    def __post_init__(self) -> None:
        check_number("fp32_error", self.fp32_error, "[0, inf)", "1e-4 is usual")
        check_number("--fp16-tolerance", self.fp16_error, "[0, inf)", "0.02 is usual")
        check_number("fp32_agreement", self.fp32_agreement, "[0, 1]", "0.999 is usual")
        check_number("--min-agreement", self.fp16_agreement, "[0, 1]", "0.99 is usual")

    def error(self, precision: str) -> float:
        value: float = getattr(self, f"{precision}_error")
        return value

    def agreement(self, precision: str) -> float:
        value: float = getattr(self, f"{precision}_agreement")
        return value


@dataclass(frozen=True)
class GateTolerances:
    """Tolerances of an engine, and of a file in INT8, against fp32, as shares of the images."""

    # a correct fp16 engine loses a few tenths of a point at most
    drop: Annotated[
        float,
        Option(
            "Largest accepted loss of top-1 accuracy, or of a detector's precision, against fp32: 0.01 is one point.",
            CHECKS,
            name="--engine-drop",
        ),
    ] = 0.01
    # a miscompiled block often ruins some classes and spares others
    class_drop: Annotated[
        float,
        Option(
            "Largest accepted loss of accuracy in any one class: 0.05 is five points.",
            CHECKS,
            name="--engine-class-drop",
        ),
    ] = 0.05
    # errors in both directions keep the accuracy
    agreement: Annotated[
        float,
        Option(
            "Smallest accepted share of images on which the engine agrees with fp32; not for logits in INT8.",
            CHECKS,
            name="--engine-agreement",
        ),
    ] = 0.98

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(f"--engine-{name.replace('_', '-')}", value, "[0, 1]", "give a share between 0 and 1")


METHODS = ("max", "percentile", "entropy")


@dataclass(frozen=True)
class Calibration:
    """How INT8 is calibrated."""

    method: Annotated[
        str,
        Option("Range of INT8 inputs of a layer: max, percentile or entropy.", CHECKS, name="--calibration"),
    ] = "max"
    images: Annotated[
        int, Option("Number of training images to calibrate INT8 on.", DATA, name="--calibration-images")
    ] = 256

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError("calibration", self.method, METHODS)
        check_number("--calibration-images", self.images, COUNT)


@dataclass(frozen=True, kw_only=True)
class FilesRequest:
    """The request of an export of files; that of `edgevit.export` adds options of engines."""

    model: Annotated[
        Path,
        Option("Model folder to export, or an ONNX file from another tool.", None),
    ]
    out: Annotated[
        Path | None,
        Option(
            "New folder for an imported ONNX file and its results.  [default: beside the file, without .onnx]",
            FILES,
            metavar="FOLDER",
            common=True,
        ),
    ] = None
    batch: Annotated[
        Batch,
        Option("Images per inference: a number, or dynamic.", FILES, read=_read_batch, metavar="NUMBER", common=True),
    ] = "dynamic"
    opset: Annotated[int, Option("ONNX operator set, 17 to 20.", FILES)] = 20
    pad_heads: Annotated[
        bool,
        Option(
            "Pad heads with zeros so that TensorRT fuses every attention. The outputs do not change.",
            FILES,
            common=True,
        ),
    ] = False
    whole: Annotated[
        bool,
        Option("Also write detector.onnx: a whole detector, from an image to boxes, for ONNX Runtime.", FILES),
    ] = False
    fp16: Annotated[bool, Option("Also write and check model.fp16.onnx.", FILES, common=True)] = True
    precision: Annotated[
        str,
        Option(
            "Lowest precision: fp16, or int8, which adds model.int8.onnx with linear layers in INT8 as far as "
            "--engine-drop allows.",
            FILES,
            common=True,
        ),
    ] = FP16.name
    calibration: Annotated[Calibration, Nested()] = field(default_factory=Calibration)
    data: Annotated[
        Path | str | None,
        Option(
            "Images for measuring accuracy.  [default: the images that the model was derived from]",
            DATA,
            metavar="FOLDER",
            common=True,
        ),
    ] = None
    classes: Annotated[
        str | Path | Sequence[str | int] | None,
        Option(
            "Classes of an imported ONNX file: names or indices of its outputs, separated by commas, or a "
            "file of them.  "
            "[default: all classes of the data]",
            DATA,
            metavar="NAMES",
        ),
    ] = None
    base_classes: Annotated[
        Path | str | Sequence[str] | None,
        Option(
            "File of an imported ONNX file's class names in the order of its outputs, one per line.  "
            "[default: ImageNet's order, or the alphabet's]",
            DATA,
        ),
    ] = None
    accuracy: Annotated[
        bool, Option("Measure accuracy on images, and the agreement of each file with torch.", DATA, common=True)
    ] = True
    part: _Split = "test"
    max_images: Annotated[
        int | None,
        Option(
            "Number of images to measure on, spread evenly over the classes.  [default: all; 500 on a board]",
            DATA,
            common=True,
        ),
    ] = None
    skip_bad_images: SkipBadImages = False
    input_size: Annotated[
        tuple[int, int, int] | None,
        Option(
            "Input size of an imported ONNX file, where the file does not state it.",
            PREPROCESSING,
            metavar="CxHxW",
            read=read_size,
        ),
    ] = None
    output_name: Annotated[
        str | None,
        Option("Name of the output of an imported ONNX file to export, where it has several.", FILES),
    ] = None
    output: Annotated[
        str | None,
        Option(
            "What an imported ONNX file puts out: classes, features, map (values), or map:foreground or map:classes "
            "(logits).  [default: by the shape: classes of [B, C], features of [B, N, D], map of [B, C, H, W]]",
            FILES,
            metavar="KIND",
        ),
    ] = None
    preprocessing: Annotated[Mapping[str, Any], Nested(GivenPreprocessing)] = field(default_factory=dict)
    crop_mode: Annotated[
        str | None,
        Option(
            "Cropping of non-square images for an imported ONNX file: center, squash or border.  [default: center]",
            PREPROCESSING,
        ),
    ] = None
    tolerances: Annotated[Tolerances, Nested()] = field(default_factory=Tolerances)
    batch_size: Annotated[int, Option("Images per inference during the checks.", COMPUTING)] = 32
    workers: Workers = None
    device: Annotated[str, Option("Device for the checks: auto, cpu, cuda or cuda:1.", COMPUTING, common=True)] = "auto"

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the files; an imported file in another than fp32 is exported as it is."""
        if precision := ModelFolder(self.model).own_precision:
            return (precision,)
        calibrated = (INT8.name,) if self.precision == INT8.name else ()
        return (FP32.name, *((FP16.name,) if self.fp16 else ()), *calibrated)

    @property
    def allowed_loss(self) -> GateTolerances:
        """What a file in INT8 may lose."""
        return GateTolerances()

    def check(self) -> None:
        """Check the request; raises as `edgevit.export` does."""
        if self.batch != "dynamic" and (not isinstance(self.batch, int) or self.batch < 1):
            raise OptionError(f"batch {self.batch!r} is neither a number of images nor 'dynamic'; try 1")
        if self.precision not in (FP16.name, INT8.name):
            raise UnknownNameError("precision", self.precision, (FP16.name, INT8.name))
        if self.precision == INT8.name and self.opset < QUANTISED_OPSET:
            raise OptionError(f"--opset {self.opset} has no Q/DQ of fp16, which INT8 is built from; leave it out")
        folder = ModelFolder(self.model)
        if self.whole and (not folder.is_model or folder.spec().output_kind != "boxes"):
            raise OptionError(f"--whole is for a detector, and {self.model} is none; leave it out")
        if self.opset not in OPSETS:
            raise OptionError(
                f"opset {self.opset} is not one of {OPSETS[0]} to {OPSETS[-1]}, which JetPack's parsers read; try 20"
            )
        if self.of_folder:
            self._check_folder()
        else:
            self._check_file()
        check_judging(
            self.data, self.classes, self.base_classes, part=self.part, max_images=self.max_images,
            batch_size=self.batch_size, device=self.device, sorted_by_class=self._classifies,
        )  # fmt: skip

    @property
    def _classifies(self) -> bool:
        """Whether the images must be sorted by class; of a file that does not say it here, its shapes tell it later."""
        if self.of_folder:
            return _puts_out_classes(self.model)
        return self.output == "classes" or self.classes is not None or self.base_classes is not None

    @property
    def of_folder(self) -> bool:
        """Whether the model is a folder, not a file."""
        return self.model.is_dir() or suffix_of(self.model) not in (ONNX, *WEIGHTS_ALONE)

    @property
    def folder(self) -> Path:
        """The folder with the export."""
        if self.out is not None:
            return self.out
        return self.model if self.of_folder else self.model.with_suffix("")

    def _check_folder(self) -> None:
        foreign = {
            "out": self.out, "classes": self.classes, "base-classes": self.base_classes, "input-size": self.input_size,
            "crop-mode": self.crop_mode, "output-name": self.output_name, "output": self.output, **self.preprocessing,
        }  # fmt: skip
        if options := [name.replace("_", "-") for name, value in foreign.items() if value is not None]:
            instead = (
                "give it to `edgevit base` or `edgevit derive`, whose folder then names its classes"
                if options[0].endswith("classes")
                else "leave it out"
            )
            raise OptionError(f"--{options[0]} is for an ONNX file, and {self.model} is not one; {instead}")
        if ModelFolder(self.model).is_imported:
            self._refuse_exporter_options()
            ModelFolder(self.model).imported()
        elif is_release(self.model):
            raise _weights_alone(self.model)
        else:
            check_model_folder(self.model)

    def _check_file(self) -> None:
        if not self.model.is_file():
            raise CheckpointError(f"there is no {self.model}; check the path")
        if suffix_of(self.model) != ONNX:
            raise _weights_alone(self.model)
        if self.data is None and (self.classes is not None or self.base_classes is not None):
            raise OptionError("--classes and --base-classes are of the images of --data; give that, too")
        self._refuse_exporter_options()
        check_preprocessing(self.preprocessing)
        if self.crop_mode is not None and self.crop_mode not in _CROP_MODES:
            raise UnknownNameError("crop mode", self.crop_mode, _CROP_MODES)
        if self.output is not None and self.output not in OUTPUT_KINDS:
            raise UnknownNameError("output", self.output, tuple(OUTPUT_KINDS))
        if not ModelFolder(self.folder).is_imported:
            refuse_existing(self.folder)

    def _refuse_exporter_options(self) -> None:
        """Raise OptionError for options of edgevit's exporter."""
        if self.pad_heads:
            raise OptionError("--pad-heads is for model folders: an ONNX file keeps its heads; leave it out")
        if self.opset != OPSETS[-1]:
            raise OptionError(f"--opset {self.opset} is for model folders: an ONNX file keeps its own; leave it out")


def _weights_alone(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} contains only weights; try `edgevit base {shlex.quote(str(path))} --out DIR`, and export that"
    )


@dataclass(frozen=True, kw_only=True)
class JudgeRequest(BaseOptions):
    """The request of an evaluation on this machine."""

    model: Annotated[
        str | Path,
        Option(
            "Name of a timm model, path of a model folder, or an .onnx or .engine file that edgevit exported.",
            None,
            also="base",
        ),
    ]
    data: Annotated[
        str | Path | None,
        Option(
            f"{DATA_KINDS}  [default: the images that a model folder was derived from]",
            DATA,
            metavar="FOLDER",
            common=True,
        ),
    ] = None
    classes: Classes = None
    base_classes: BaseClasses = None
    part: _Split = "test"
    probe: Probe = ()
    seed: Annotated[int | None, Option("Seed of the split into parts.  [default: the model's own, or 42]", DATA)] = None
    group_by: GroupBy = None
    validation_fraction: float | None = None  # of the split; None: that of the model, or 0.1
    max_images: Annotated[
        int | None,
        Option("Number of images to evaluate on, spread evenly over the classes.  [default: all]", DATA, common=True),
    ] = None
    skip_bad_images: SkipBadImages = False
    batch_size: Annotated[int, Option("Images per inference.", COMPUTING)] = 32
    workers: Workers = None
    device: Annotated[str, Option("Device for torch: auto, cpu, cuda or cuda:1.", COMPUTING, common=True)] = "auto"

    def check(self) -> None:
        """Check the request; raises as `edgevit.evaluate` does."""
        self._check_model()
        labelled = bool(self.probe) or _puts_out_classes(self.model)
        check_judging(
            self.data, self.classes, self.base_classes, part=self.part, max_images=self.max_images,
            batch_size=self.batch_size, device=self.device, sorted_by_class=labelled,
        )  # fmt: skip
        if self.probe and self.data is None:
            raise OptionError("--probe fits classifiers to labelled images; give them with --data")
        if self.probe and suffix_of(self.model) == ENGINE:
            raise OptionError(f"--probe reads a model folder or an ONNX file, and {self.model} is an engine")

    def _check_model(self) -> None:
        """Check the timm name, model folder or exported file."""
        if ModelFolder(Path(self.model)).is_imported:
            self._refuse_opening()
            ModelFolder(Path(self.model)).imported()
            return
        if suffix_of(self.model) not in (ONNX, ENGINE):
            self.check_base(self.model)
            return
        self._refuse_opening()
        if not Path(self.model).is_file():
            raise CheckpointError(f"there is no {self.model}; check the path, or write it with edgevit export")
        if Path(self.model).name == WHOLE_DETECTOR:
            raise OptionError(
                f"{self.model} was judged when it was exported; give the model folder, or another file of its export"
            )
        if suffix_of(self.model) == ENGINE:
            _check_engine(Path(self.model))

    def _refuse_opening(self) -> None:
        if extra := [name for name, value in self.opening().items() if value]:
            raise OptionError(f"{self.model} has its own weights and preprocessing; leave out {', '.join(extra)}")


def _check_engine(engine: Path) -> None:
    """Check that an engine has its record and its model folder."""
    record = engine.with_suffix(".json")
    if not record.is_file():
        raise EngineError(
            f"{engine} has no record {record.name}, which states its board; copy that to the same folder, or "
            "evaluate the model folder"
        )
    folder = model_of(engine.absolute())
    if not folder.is_model and not folder.is_imported:
        raise EngineError(
            f"{engine} is in no model folder, whose {SPEC} has its classes and preprocessing; leave it in "
            "MODEL/export/engines/BOARD and copy all of MODEL, or evaluate that"
        )


ReadyMade = Annotated[
    Sequence[Path],
    Option(
        "ONNX file of a ready-made model, such as resnet50.onnx, to compare with the derived ones on the same images; "
        "repeatable.",
        JUDGING,
        name="--beside",
        metavar="FILE",
        repeated=True,
        common=True,
    ),
]


def ready_made_files(files: Path | Sequence[str | Path]) -> list[Path]:
    """The files of --beside, which are ONNX files of different names.

    Raises:
        CheckpointError: there is no such file.
        OptionError: it is not an ONNX file, or two files have one name.
    """
    paths = [files] if isinstance(files, Path) else list(map(Path, files))
    for file in paths:
        if not file.is_file():
            raise CheckpointError(f"there is no {file}; check the path of --beside")
        if suffix_of(file) != ONNX:
            raise OptionError(f"--beside {file} is not an ONNX file; export the model to ONNX, and give that")
    if len({file.stem for file in paths}) < len(paths):
        raise OptionError(f"--beside has two files named {paths[-1].name}; rename one")
    return paths


def check_part(part: str) -> None:
    """Raise UnknownNameError if there is no such part to evaluate."""
    if part not in _PARTS:
        raise UnknownNameError("part of the data", part, _PARTS)


def _puts_out_classes(model: str | Path) -> bool:
    """False for a folder, or a file of one, whose outputs are features, a map or boxes; and for a builder.

    Also for a file of no folder, of which its metadata tells it later.
    """
    if is_builder(model):
        return False
    path, suffix = Path(model).absolute(), suffix_of(model)
    folder = model_of(path) if suffix == ENGINE else ModelFolder(path.parent.parent if suffix == ONNX else path)
    if folder.is_imported:
        return folder.imported().output_kind == "logits"
    return folder.spec().output_kind == "logits" if folder.is_model else suffix != ONNX


def check_judging(
    data: str | Path | None,
    classes: str | Path | Sequence[str | int] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    *,
    part: str,
    max_images: int | None,
    batch_size: int,
    device: str,
    sorted_by_class: bool = True,
) -> None:
    """Check the options of an evaluation on images.

    Raises:
        UnknownNameError: no such part, device or class.
        OptionError: a number out of range.
        DataError: the images, or a file of classes, are missing.
    """
    check_part(part)
    check_device_name(device)
    check_number("--batch-size", batch_size, COUNT)
    if max_images is not None:
        check_number("--max-images", max_images, COUNT)
    if data is not None and sorted_by_class:
        check_data(data, classes, base_classes)
    elif data is not None:
        check_pictures(data)
