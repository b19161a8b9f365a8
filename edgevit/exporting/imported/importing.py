"""Import an ONNX file that edgevit did not write: check it, recognise its parts, and write a folder for the export.

The folder has `model.onnx`, the same function with folded constants and nodes named by module, and `onnx.json`, its
description. It is exported, built, evaluated and measured like a model folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from edgevit.data.assumptions import assumptions, order_line
from edgevit.data.classes import label_names
from edgevit.errors import CheckpointError, ExportError, OptionError, OutputError
from edgevit.exporting.evaluate import open_onnx
from edgevit.exporting.graph import INPUT, exporter_boundary, plain_shapes
from edgevit.exporting.images import Judging, Subject, open_judging
from edgevit.exporting.imported.counting import count_macs, count_params
from edgevit.exporting.imported.reading import (
    Interface,
    check_nodes,
    precision_in,
    read_file,
    read_interface,
    resolve_batch,
    resolve_size,
    select_output,
)
from edgevit.exporting.imported.stated import stated_preprocessing
from edgevit.exporting.imported.structure import Structure, find_structure, name_nodes
from edgevit.exporting.imported.widening import widen
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import DTYPES, open_session, refuse_huge, runtime_boundary
from edgevit.network.output import Logits, columns_of
from edgevit.progress import Progress, Silent
from edgevit.records.export import Batch
from edgevit.records.imported import ImportedDocument
from edgevit.records.model import PreprocessingFields, TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.records.precisions import FP32
from edgevit.records.release import ReleaseFacts, read_release
from edgevit.records.writing import file_sha256, new_folder
from edgevit.version import written_by

Target = TypeVar("Target", bound=FilesRequest)
_TOLERANCE = 1e-4  # relative L2 error of the imported file against the original
_ROUNDED_TOLERANCE = 2e-2  # accepted error of a file that rounds: ONNX Runtime may fuse its nodes in another order
_OUTPUT = Logits.noun
_WRITER = "edgevit_version"  # metadata key of files that edgevit wrote


def simplified(file: Path, model: onnx.ModelProto, shape: list[int | str]) -> ir.Model:
    """Return the same function with folded constants, known sizes, and edgevit's names of input and output."""
    changed: ir.Model = ir.from_proto(model)
    lift = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    infer = passes.ShapeInferencePass(data_prop=True)
    with exporter_boundary(file.name):
        changed = passes.RemoveInitializersFromInputsPass()(passes.InlinePass()(changed).model).model
        for value in (v for node in changed.graph for v in node.outputs):
            value.shape = None  # the stored shapes may be of another batch
        changed.graph.inputs[0].shape = ir.Shape(shape)
        changed = infer(lift(changed).model).model
        optimizer.fold_constants(changed, onnx_shape_inference=True)
        tidy: list[Callable[[ir.Model], Any]] = [
            passes.IdentityEliminationPass(), lift, passes.RemoveUnusedNodesPass(), passes.RemoveUnusedOpsetsPass(),
            passes.TopologicalSortPass(), infer, passes.ClearMetadataAndDocStringPass(),
        ]  # fmt: skip
        for step in tidy:
            changed = step(changed).model
    graph = changed.graph
    plain_shapes(graph)
    ends = (graph.inputs[0], graph.outputs[0])
    for value in (*graph.initializers.values(), *(v for node in graph for v in node.outputs)):
        if value.name in (INPUT, _OUTPUT) and value not in ends:
            value.name = f"{value.name}.inner"
    graph.inputs[0].name, graph.outputs[0].name = INPUT, _OUTPUT
    changed.metadata_props.clear()
    return changed


def _logits(file: Path, images: Any, output: str | None = None) -> Any:
    """Run images [B, 3, H, W] in ONNX Runtime; `output` names one of several outputs."""
    with runtime_boundary(file, CheckpointError):
        session = open_session(file)
        input = session.get_inputs()[0]
        values = images.astype(DTYPES.get(input.type, np.float32))
        return session.run(output and [output], {input.name: values})[0].astype(np.float32)


def _expected(file: Path, images: Any, output: str | None) -> Any:
    """The logits [B, C] of the original file.

    Raises:
        CheckpointError: it has another output, which is not finite, or cannot be run.
    """
    logits = _logits(file, images, output)
    if logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
        raise CheckpointError(
            f"{file} maps {len(images)} images to {list(logits.shape)} and is not a classifier: expected a row of "
            "logits for each image"
        )
    if not np.isfinite(logits).all():
        raise CheckpointError(
            f"{file} maps random images to NaN or infinity; its weights may be broken: export it again"
        )
    return logits


def _write_simplified(file: Path, changed: ir.Model, path: Path, expected: Any, images: Any, tolerance: float) -> None:
    """Write the graph, and check that it is still the same function."""
    with exporter_boundary(file.name):
        ir.save(changed, path)
    error = float(np.linalg.norm(_logits(path, images) - expected) / max(float(np.linalg.norm(expected)), 1e-30))
    if not error <= tolerance:
        raise ExportError(
            f"folding the constants of {file} changed its logits by {error:.2g}; export it with another opset"
        )


def _own_subject(
    file: Path, metadata: Mapping[str, str], preprocessing: PreprocessingFields, outputs: int, release: ReleaseFacts
) -> Subject:
    """The classes of a file: by its metadata if edgevit wrote it, otherwise by the files in its folder."""
    if _WRITER in metadata:
        return replace(open_onnx(file, "cpu").subject, preprocessing=preprocessing)
    return Subject((), (), outputs, preprocessing, release=release, origin=str(file))


def _judging(request: FilesRequest, subject: Subject, progress: Progress) -> Judging | None:
    """Open the images, if given; note the assumed classes of the outputs."""
    if request.data is None:
        return None
    judging = open_judging(
        subject,
        request.data,
        classes=request.classes,
        base_classes=request.base_classes,
        part=request.part,
        skip_bad_images=request.skip_bad_images,
        progress=progress,
    )
    if not subject.class_names:
        assumed = assumptions(
            request.model, judging.task, pretrained=False, base_classes=request.base_classes, overridden=(),
            release=subject.release,
        )  # fmt: skip
        progress.note(assumed.lines()[0])
    return judging


def _classes(subject: Subject, judging: Judging | None, progress: Progress) -> tuple[TargetClass, ...]:
    """The classes of an ONNX file: by its metadata, by the images, or by a file in its folder."""
    if judging is not None and not subject.class_names:
        return tuple(map(TargetClass, judging.class_names, columns_of(judging.output)))
    if not subject.class_names and (names := label_names(subject.release.labels, (), subject.outputs)):
        progress.note(order_line([*zip(names, range(len(names)), strict=True)], subject.outputs, "config.json"))
        return tuple(map(TargetClass, names, range(len(names))))
    return tuple(map(TargetClass, subject.class_names, subject.class_columns))


def _prepared(
    request: FilesRequest,
    interface: Interface,
    metadata: Mapping[str, str],
    release: ReleaseFacts,
    of_models: Mapping[str, Any],
    progress: Progress,
) -> PreprocessingFields:
    """The preprocessing for the input size of the file; notes the origin of each part."""
    file, size = request.model, resolve_size(request.model, interface, request.input_size)
    options = {**request.preprocessing, "input_size": size, "crop_mode": request.crop_mode}
    preprocessing, origin = stated_preprocessing(file, metadata, options, release, of_models)
    resolve_size(file, interface, preprocessing["input_size"])
    if size is not None and request.input_size is None:
        origin["input_size"] = "as its input is"
    by_origin: dict[str, list[str]] = {}
    for part, value in preprocessing.items():
        text = ",".join(f"{v:g}" for v in value) if isinstance(value, list) else str(value)
        by_origin.setdefault(origin[part], []).append(f"{part} {text}")
    progress.note(
        "preprocessing: " + "; ".join(f"{', '.join(parts)}, {origin_text}" for origin_text, parts in by_origin.items())
    )
    return preprocessing


def _write_onnx(
    file: Path,
    model: onnx.ModelProto,
    path: Path,
    batch: Batch,
    size: Sequence[int],
    output: str | None,
    tolerance: float,
    progress: Progress,
) -> tuple[Structure, int]:
    """Write the same function with named parts; return these parts and the number of outputs."""
    count, first = (2, "batch") if batch == "dynamic" else (batch, batch)
    refuse_huge(file, [count, *size])
    images = np.random.default_rng(0).standard_normal((count, *size)).astype(np.float32)
    expected = _expected(file, images, output)
    outputs: int = expected.shape[1]
    with progress.stage("import"):
        changed = simplified(file, model, [first, *size])
        changed.graph.outputs[0].shape = ir.Shape([first, outputs])
        structure = find_structure(changed.graph)
        name_nodes(changed.graph, structure)
        _write_simplified(file, changed, path, expected, images, tolerance)
    progress.note(f"recognised {len(structure.blocks)} blocks and {len(structure.norms)} layer normalisations")
    return structure, outputs


def import_file(
    request: FilesRequest, folder: ModelFolder, progress: Progress, of_models: Mapping[str, Any] = MappingProxyType({})
) -> ImportedDocument:
    """Write all files to a new folder; `of_models` is the preprocessing of derived models, for parts not stated."""
    file = request.model
    model = read_file(file)
    opset = check_nodes(file, model)
    select_output(file, model.graph, request.output_name)
    if widened := widen(model):
        progress.note(f"{file} is in bfloat16: imported in fp32 with the same weights")
    if (precision := precision_in(model)) != FP32.name:
        progress.note(f"{file} is in {precision}: exported, judged and built as it is")
    tolerance = _ROUNDED_TOLERANCE if widened or precision != FP32.name else _TOLERANCE
    interface = read_interface(file, model.graph)
    batch = resolve_batch(file, interface.batch, request.batch)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    release = read_release(file.parent)
    preprocessing = _prepared(request, interface, metadata, release, of_models, progress)
    size = preprocessing["input_size"]
    structure, outputs = _write_onnx(
        file, model, folder.imported_onnx, batch, size, request.output_name, tolerance, progress
    )
    subject = _own_subject(file, metadata, preprocessing, outputs, release)
    judging = _judging(request, subject, progress)
    classes = _classes(subject, judging, progress)
    document = ImportedDocument(
        file=file.name,
        file_sha256=file_sha256(file),
        weights_sha256=file_sha256(folder.imported_onnx),
        batch=batch,
        opset=opset,
        precision=precision,
        outputs=outputs,
        norms=structure.norms,
        blocks=structure.blocks,
        classes=classes,
        preprocessing=preprocessing,
        rejection=subject.rejection,
        seed=subject.seed,
        validation_fraction=subject.validation_fraction,
        data=judging.task.record() if judging else None,
        macs=count_macs(folder.imported_onnx, np.zeros((1 if batch == "dynamic" else batch, *size), np.float32)),
        params=count_params(folder.imported_onnx),
        edgevit=written_by(),
    )
    folder.write_imported(document)
    return document


def imported(request: Target, progress: Progress | None = None) -> Target:
    """Import the model of the request if it is an ONNX file; return the request for its folder.

    A folder of the same file with the same options is kept, with its engines.

    Raises:
        CheckpointError, ExportError: the file is damaged, not a classifier, or has operators that no board supports.
        OptionError: a part of the preprocessing is missing, or options contradict the file.
        OutputError: the folder exists with other content.
        DataError, UnknownNameError: as for `evaluate`.
    """
    request.check()
    progress = progress or Silent()
    if request.of_folder:
        return request
    target = ModelFolder(request.folder)
    if request.out is None:
        progress.note(f"files of {request.model} are written to {target.path}; --out names another folder")
    if target.is_imported:
        with tempfile.TemporaryDirectory(prefix="edgevit-") as scratch:
            document = import_file(request, ModelFolder(Path(scratch)), progress)
        before = target.imported()
        alike = replace(before, edgevit=document.edgevit, macs=document.macs, params=document.params, answers={})
        if alike != document:
            raise OutputError(
                f"{target.path} has another file, or {before.file} with other options; choose another --out"
            )
        progress.note(f"{target.path} is up to date: kept")
    else:
        with new_folder(target.path) as temporary:
            document = import_file(request, ModelFolder(temporary), progress)
    return replace(
        request, model=target.path, out=None, data=None, classes=None, base_classes=None, input_size=None,
        crop_mode=None, output_name=None, preprocessing={}, batch="dynamic",
    )  # fmt: skip


def batch_and_opset(request: FilesRequest) -> tuple[Batch, int]:
    """Batch and operator set of an export: as requested, or those of an imported file.

    Raises:
        OptionError: another batch was requested.
    """
    folder = ModelFolder(request.model)
    if not folder.is_imported:
        return request.batch, request.opset
    document = folder.imported()
    if request.batch not in ("dynamic", document.batch):
        raise OptionError(f"{folder.path} has a batch of {document.batch}; import {document.file} again for another")
    return document.batch, document.opset
