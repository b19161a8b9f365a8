"""Export a model folder: write ONNX files, check them, and move them to `DIR/export/`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.data.assumptions import CHECK, assumptions, order_line
from edgevit.data.loading import workers_for
from edgevit.data.neighbours import near_chance
from edgevit.errors import DataError, ExportError, OptionError, OutputError
from edgevit.exporting.fusion import compiler_installed, count_fused, fusion_remark
from edgevit.exporting.gates import OPERATORS, check_accuracy, check_graph, check_parity
from edgevit.exporting.graph import IDS, INPUT, save_graph
from edgevit.exporting.halving import halve
from edgevit.exporting.images import Judging, Subject, data_record, open_judging, subject_of
from edgevit.exporting.imported.importing import batch_and_opset, imported
from edgevit.exporting.imported.reading import QUANTISED
from edgevit.exporting.imported.source import open_imported, subject_of_imported
from edgevit.exporting.int8.write import calibrated
from edgevit.exporting.precision import format_overflow, needs_fp32
from edgevit.exporting.request import FilesRequest, Tolerances
from edgevit.exporting.session import OnnxModel, find_runtime
from edgevit.exporting.source import Form, ModelSource, Source, input_size, open_model, usage_metadata
from edgevit.exporting.whole import COMPARED_IMAGES, compare_detector, write_detector
from edgevit.network.detector import Pyramid
from edgevit.network.device import find_device
from edgevit.network.output import Features, Output
from edgevit.progress import Progress, Silent
from edgevit.records.export import (
    AccuracyCheck,
    Batch,
    ExportedFile,
    ExportRecord,
    Fusion,
    OutputClass,
    Parity,
    Quantisation,
    Range,
    TensorInfo,
    WholeDetector,
)
from edgevit.records.model import reads_texts
from edgevit.records.model_folder import ExportFolder, ModelFolder
from edgevit.records.names import ENGINES, onnx_name
from edgevit.records.precisions import FP16, FP32, INT8, PRECISIONS
from edgevit.records.writing import file_sha256, replaced_folder
from edgevit.version import written_by

_PARITY_IMAGES = 4
_SPECIAL_IDS = 5


class _Stages:
    """Progress and duration of the stages."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with self.progress.stage(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@contextmanager
def _replaced_folder(export: ExportFolder) -> Iterator[ExportFolder]:
    """Yield a temporary folder that replaces `export` when the block succeeds, and is removed otherwise.

    Engines in the folder are kept.

    Raises:
        OutputError: the existing folder was not written by `export`, or it cannot be written.
    """
    folder = export.path

    def refuse() -> None:
        if folder.exists() and not export.record_file.is_file():
            raise OutputError(
                f"{folder} exists without {export.record_file.name}, so it is not an earlier export; move it away"
            )

    # Engines have records of their sources, and took minutes on boards that may not be reachable now.
    with replaced_folder(folder, refuse, keep=ENGINES) as temporary:
        yield ExportFolder(temporary)


def open_model_source(folder: Path) -> Source:
    """Open the model of a folder, to write its files.

    Raises:
        CheckpointError: it is damaged.
    """
    return open_imported(folder) if ModelFolder(folder).is_imported else open_model(folder)


def folder_subject(folder: ModelFolder) -> Subject:
    """The subject of a folder, without opening its model.

    Raises:
        CheckpointError: its records are damaged.
    """
    if folder.is_imported:
        return subject_of_imported(folder.imported(), str(folder.imported_file))
    return subject_of(folder.spec(), data_record(folder.path))


def judging_images(subject: Subject, data: str | Path | None, warnings: list[str], **options: Any) -> Judging | None:
    """Open the images of an evaluation; if those of the model are missing, add a warning and return None."""
    try:
        return open_judging(subject, data, **options)
    except DataError as error:
        if data is not None:
            raise
        warnings.append(f"accuracy not checked: {error}")
        return None


def note_class_order(folder: Path, subject: Subject, judging: Judging | None, progress: Progress) -> None:
    """Note the assumed order of classes for a folder that does not name its outputs."""
    if judging is None or subject.class_names or subject.output_kind != "logits":
        return
    assumed = assumptions(folder, judging.task, pretrained=False, base_classes=None, overridden=())
    command = "an import" if ModelFolder(folder).is_imported else "`edgevit base`"
    option = f"{command} with --base-classes FILE"
    progress.note(order_line(assumed.classes, assumed.outputs, assumed.classes_from, option))


def sample_images(judging: Judging | None, source: Source) -> tuple[Tensor, str]:
    """A few images for the checks of parity and range; random without images."""
    if judging is None:
        generator = torch.Generator().manual_seed(0)
        shape = _PARITY_IMAGES, *input_size(source)
        if reads_texts(source.subject.preprocessing):  # ids that every vocabulary of BERT has
            return torch.randint(_SPECIAL_IDS, shape, generator=generator), "random"
        return torch.randn(shape, generator=generator), "random"
    images, _ = next(iter(judging.split.subset(_PARITY_IMAGES).batches(_PARITY_IMAGES)))
    return images, judging.data


def _versions() -> dict[str, str]:
    names = ["torch", "timm", "onnx", "onnxscript", "onnxruntime"]
    return {"edgevit": written_by(), **{name: str(import_module(name).__version__) for name in names}}


@dataclass(frozen=True)
class _Written:
    """The files of one export in their temporary folder."""

    folder: ExportFolder
    nodes: dict[str, dict[str, int]]  # number of nodes by operator, for each precision

    def session(self, precision: str, device: str = "cpu") -> OnnxModel:
        return OnnxModel(self.folder.onnx(precision), device=device)

    def files(self) -> dict[str, ExportedFile]:
        nodes = {onnx_name(precision): counts for precision, counts in self.nodes.items()}
        return {
            path.name: ExportedFile(file_sha256(path), path.stat().st_size, nodes.get(path.name))
            for path in sorted(self.folder.path.iterdir())
        }


def write_file(source: Source, path: Path, form: Form) -> dict[str, int]:
    """Write one file and check its graph; return the number of nodes by operator.

    Raises:
        ExportError: it cannot be written in this form, or a check failed.
    """
    metadata = {**usage_metadata(source), "precision": form.precision}
    if form.fp32_modules:
        metadata["fp32_modules"] = " ".join(form.fp32_modules)
    source.write(path, form, metadata)
    return check_graph(path, form.opset, islands=form.fp32_modules, operators=source.operators)


def _write_int8(
    source: Source, folder: ExportFolder, form: Form, judging: Judging | None, request: FilesRequest, stages: _Stages
) -> tuple[dict[str, int], Quantisation]:
    """Write the file in INT8; return the number of nodes by operator, and the record.

    Raises:
        ExportError: as by `calibrated`, or there are no images.
    """
    if judging is None:
        raise ExportError("INT8 is calibrated on training images of the model, which were not found; give --data")
    with stages("write int8"):
        graph = source.graph(form.batch, form.opset)
        model, record = calibrated(
            graph, form.batch, judging, request.calibration, request.allowed_loss, stages.progress
        )
        path = folder.onnx(form.precision)
        save_graph(model, path, {**source.origin, **usage_metadata(source), "precision": form.precision})
    operators = {*OPERATORS, *(source.operators or ()), *QUANTISED}
    return check_graph(path, form.opset, operators=operators), record


def write_int8_in_half(source: Source, quantised: Path, path: Path, form: Form) -> dict[str, int]:
    """Write the file in INT8 with all else in fp16, as boards need it; return the number of nodes by operator.

    Raises:
        ExportError: as by `write_file`.
    """
    model = ir.load(quantised)
    halve(model.graph, form.fp32_modules)
    save_graph(model, path, dict(model.metadata_props))
    operators = {*OPERATORS, *(source.operators or ()), *QUANTISED}
    return check_graph(path, form.opset, islands=form.fp32_modules, operators=operators)


def _parity(
    output: Output, reference: Tensor, written: _Written, images: Tensor, images_from: str, tolerances: Tolerances
) -> dict[str, Parity]:
    return {
        precision: check_parity(
            output, precision, reference, written.session(precision).predict, images, images_from,
            tolerances.error(precision),
        )
        for precision in written.nodes
    }  # fmt: skip


def _accuracy(
    source: Source, written: _Written, judging: Judging, tolerances: Tolerances, device: str, **options: Any
) -> AccuracyCheck:
    sessions = {precision: written.session(precision, device).predict for precision in written.nodes}
    return check_accuracy(source.predictor(device), sessions, judging, tolerances, **options)


def _fp32_modules(source: Source, measured: Range | None, warnings: list[str]) -> tuple[str, ...]:
    """The modules that stay in fp32 because they overflow fp16; adds a warning."""
    modules = needs_fp32(measured, source.norms, source.blocks) if measured else ()
    if measured and modules:
        warnings.append(format_overflow(measured, modules))
    return modules


def _doubts(source: Source, check: AccuracyCheck) -> Iterator[str]:
    """Warn of an imported file that is near chance: its classes or its preprocessing may be wrong."""
    file, choices = source.described.file, len(source.subject.class_names)
    if file and check.torch is not None and near_chance(round(check.torch * check.images), check.images, choices):
        share = f"{check.torch:.1%} of {check.images} {check.part} images"
        yield f"{file} is correct on {share}, where chance is {1 / choices:.1%}; {CHECK}"


def _fusion(source: Source, written: _Written, warnings: list[str]) -> Fusion | None:
    fusing = [precision for precision in written.nodes if PRECISIONS[precision].fuses]
    if not fusing:
        return None
    if not compiler_installed():
        warnings.append("fused attention not counted: TensorRT-RTX is not installed; try `pip install edgevit[rtx]`")
        return None
    path = written.folder.onnx(fusing[0])
    blocks, fusable, foreign = sum(source.has_attention), sum(source.fusable), source.described.file is not None
    fusion = count_fused(path, blocks=blocks, expected=fusable, imported=foreign)
    if text := fusion_remark(fusion, imported=foreign):
        warnings.append(text)
    return fusion


def _dtypes(path: Path) -> tuple[str, str]:
    """The types of the input and of the output of a file, or of its first."""
    graph = onnx.load(path, load_external_data=False).graph
    of_input, of_output = (
        onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        for value in (graph.input[0], graph.output[0])
    )
    return of_input, of_output


def _description(source: Source, shape: Sequence[int], batch: Batch, written: _Written) -> dict[str, Any]:
    """The part of the record without checks; `shape` is that of the outputs of one image."""
    subject = source.subject
    files = [written.folder.onnx(precision) for precision in written.nodes]
    of_inputs, of_outputs = ({file.name: _dtypes(file)[end] for file in files} for end in (0, 1))
    shapes: dict[str, Sequence[int]] = {subject.output.noun: shape}
    if isinstance(subject.output, Features):  # or levels
        outputs = written.session(next(iter(written.nodes))).outputs
        shapes = {output.name: output.shape[1:] for output in outputs}
    first = "batch" if batch == "dynamic" else batch
    named = zip(subject.class_names, subject.class_columns, strict=True)
    return {
        "inputs": (
            TensorInfo(
                IDS if reads_texts(source.subject.preprocessing) else INPUT, (first, *input_size(source)), of_inputs
            ),
        ),
        "outputs": tuple(TensorInfo(name, (first, *sizes), of_outputs) for name, sizes in shapes.items()),
        "classes": tuple(OutputClass(name, column) for name, column in named),
        "rejection": subject.rejection,
        "preprocessing": subject.preprocessing,
        "model": source.described,
    }


def _written_detector(
    source: ModelSource,
    folder: ExportFolder,
    judging: Judging | None,
    request: FilesRequest,
    images: Tensor,
    progress: Progress,
) -> WholeDetector:
    """Write the whole detector, and check it on some images, and by average precision where they have annotations."""
    network, path, record = source.model.to("cpu"), folder.whole_detector, source.subject.record
    assert isinstance(network.module, Pyramid)
    write_detector(network.module, path, input_size(source), {**source.origin, "edgevit_version": written_by()})
    judging = judging and judging.limited(request.max_images)
    if judging is not None:
        images = next(judging.split.subset(COMPARED_IMAGES).batches(COMPARED_IMAGES))[0]
    return compare_detector(network, path, images, judging, record.showing if record else None, progress)


def _refuse_int8(request: FilesRequest, source: Source) -> None:
    """Raise OptionError if INT8 is asked for, and the model cannot have it."""
    if request.precision == INT8.name and INT8.name not in request.precisions:
        raise OptionError(
            f"{request.model} is in {request.precisions[0]} and exported as it is; give the file in fp32 for "
            "--precision int8"
        )
    if INT8.name in request.precisions and reads_texts(source.subject.preprocessing):
        raise OptionError(f"INT8 is calibrated on images, and {request.model} reads texts; leave --precision int8 out")


def _judging(request: FilesRequest, source: Source, warnings: list[str], stages: _Stages) -> Judging | None:
    """The images that judge the files, or calibrate INT8; None: they are not asked for, or there are none."""
    if not (request.accuracy or request.precision == INT8.name):
        return None
    with stages("find images"):
        judging = judging_images(
            source.subject,
            request.data,
            warnings,
            part=request.part,
            skip_bad_images=request.skip_bad_images,
            progress=stages.progress,
        )
        note_class_order(ModelFolder(request.model).path, source.subject, judging, stages.progress)
    return judging


def _check_accuracy(
    request: FilesRequest, source: Source, written: _Written, judging: Judging, stages: _Stages
) -> AccuracyCheck:
    with stages("check accuracy"):
        return _accuracy(
            source,
            written,
            judging.limited(request.max_images),
            request.tolerances,
            request.device,
            batch_size=request.batch_size,
            workers=workers_for(request.workers, find_device(request.device).type, request.batch_size),
            progress=stages.progress,
        )


def export_files(request: FilesRequest, progress: Progress | None = None) -> ExportRecord:
    """Run an export; raises as `edgevit.export` does."""
    request = imported(request, progress)
    batch, opset = batch_and_opset(request)
    find_device(request.device)  # fail early: these are needed at the end
    find_runtime()
    stages, warnings = _Stages(progress or Silent()), list[str]()
    folder, precisions = ModelFolder(request.model), request.precisions
    with stages("load"):
        source = open_model_source(folder.path)
    _refuse_int8(request, source)
    judging = _judging(request, source, warnings, stages)
    images, images_from = sample_images(judging, source)
    exported, padding = source.padded() if request.pad_heads else (source, None)
    checks: dict[str, Any] = {"padded": padding, "accuracy": None, "quantisation": None}
    with stages("check ranges"):
        halved = {FP32.name, FP16.name} <= {*precisions}
        checks["range"] = exported.check_range(images) if halved else None
    fp32_modules = checks["fp32_modules"] = _fp32_modules(source, checks["range"], warnings)
    typed = folder.own_precision is not None
    forms = [
        Form(precision, batch, opset, fp32_modules if PRECISIONS[precision].mixes else ())
        for precision in precisions
        if typed or not PRECISIONS[precision].calibrated
    ]
    with _replaced_folder(folder.export) as temporary:
        written = _Written(temporary, {})
        for form in forms:
            with stages(f"write {form.precision}"):
                written.nodes[form.precision] = write_file(exported, temporary.onnx(form.precision), form)
        if INT8.name in precisions and not typed:
            form = Form(INT8.name, batch, opset)
            nodes, checks["quantisation"] = _write_int8(exported, temporary, form, judging, request, stages)
            written = _Written(temporary, {**written.nodes, INT8.name: nodes})
        with stages("check parity"):
            with torch.inference_mode():
                reference = source.predictor("cpu")(images)
            checks["parity"] = _parity(
                source.subject.output, reference, written, images, images_from, request.tolerances
            )
        with stages("count fused attention"):
            checks["fusion"] = _fusion(exported, written, warnings)
        if judging is not None and request.accuracy:
            checks["accuracy"] = _check_accuracy(request, source, written, judging, stages)
            warnings += _doubts(source, checks["accuracy"])
        if request.whole and isinstance(source, ModelSource):
            with stages("write the whole detector"):
                checks["whole"] = _written_detector(source, temporary, judging, request, images, stages.progress)
        record = ExportRecord(
            folder=folder.export.path,
            files=written.files(),
            batch=batch,
            opset=opset,
            **_description(source, reference.shape[1:], batch, written),
            **checks,
            warnings=tuple(warnings),
            versions=_versions(),
            seconds={name: round(seconds, 3) for name, seconds in stages.seconds.items()},
        )
        temporary.write_record(record)
    return record
