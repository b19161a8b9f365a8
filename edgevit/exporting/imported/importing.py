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
from edgevit.errors import CheckpointError, DataError, ExportError, OptionError, OutputError
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
from edgevit.exporting.imported.stated import ASSUMED, stated_preprocessing
from edgevit.exporting.imported.structure import Structure, find_structure, name_nodes
from edgevit.exporting.imported.widening import widen
from edgevit.exporting.request import OUTPUT_KINDS, FilesRequest
from edgevit.exporting.session import DTYPES, OUTPUT_KIND, open_session, refuse_huge, runtime_boundary
from edgevit.network.output import Map, columns_of, output_of
from edgevit.progress import Progress, Silent
from edgevit.records.export import Batch
from edgevit.records.imported import ImportedDocument
from edgevit.records.model import OutputKind, PreprocessingFields, TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.records.precisions import FP32
from edgevit.records.release import ReleaseFacts, read_release
from edgevit.records.writing import file_sha256, new_folder
from edgevit.version import written_by

Target = TypeVar("Target", bound=FilesRequest)
_TOLERANCE = 1e-4  # relative L2 error of the imported file against the original
_ROUNDED_TOLERANCE = 2e-2  # accepted error of a file that rounds: ONNX Runtime may fuse its nodes in another order
WRITER = "edgevit_version"  # metadata key of files that edgevit wrote


def simplified(file: Path, model: onnx.ModelProto, shape: list[int | str], output: str) -> ir.Model:
    """Return the same function with folded constants, known sizes, and other names of its input and output."""
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
        if value.name in (INPUT, output) and value not in ends:
            value.name = f"{value.name}.inner"
    graph.inputs[0].name, graph.outputs[0].name = INPUT, output
    changed.metadata_props.clear()
    return changed


def _outputs(file: Path, images: Any, output: str | None = None) -> Any:
    """Run images [B, 3, H, W] in ONNX Runtime; `output` names one of several outputs."""
    with runtime_boundary(file, CheckpointError):
        session = open_session(file)
        input = session.get_inputs()[0]
        values = images.astype(DTYPES.get(input.type, np.float32))
        return session.run(output and [output], {input.name: values})[0].astype(np.float32)


def expected_outputs(file: Path, images: Any, output: str | None) -> Any:
    """The outputs [B, ...] of the original file.

    Raises:
        CheckpointError: they are not one for each image, or not finite, or it cannot be run.
    """
    outputs = _outputs(file, images, output)
    is_number = outputs.ndim in (2, 3) and outputs.shape[-1] < 2  # which has neither classes nor a direction
    if outputs.ndim not in (2, 3, 4) or len(outputs) != len(images) or is_number:
        raise CheckpointError(
            f"{file} maps {len(images)} images to {list(outputs.shape)}, expected for each image a row of logits, "
            "features or a map"
        )
    if not np.isfinite(outputs).all():
        raise CheckpointError(
            f"{file} maps random images to NaN or infinity; its weights may be broken: export it again"
        )
    return outputs


def fitting_outputs(shape: Sequence[int]) -> list[str]:
    """The words of `--output` for what may have this shape [B, ...], the likeliest first."""
    if len(shape) == 2:
        return ["classes", "features"]
    if len(shape) == 3:
        return ["features", "map", "map:foreground"]
    return ["map", "map:foreground" if shape[1] == 1 else "map:classes"]


def _kind_of(request: FilesRequest, shape: Sequence[int], size: Sequence[int], progress: Progress) -> OutputKind:
    """What outputs of this shape [B, ...] are for images of this size: as requested, or by the shape.

    Raises:
        OptionError: they cannot be what is requested, or the shape does not tell it.
    """
    fitting, maps = fitting_outputs(shape), f"{request.model} maps {shape[0]} images to {list(shape)}"
    if request.output is not None:
        if request.output not in fitting:
            raise OptionError(f"{maps}, which is not {request.output}; give --output {' or '.join(fitting)}")
        return OUTPUT_KINDS[request.output]
    if len(shape) == 3 and shape[1] * size[2] == shape[2] * size[1]:  # of the images' proportions
        raise OptionError(f"{maps}, of which the shape does not tell the kind; give --output {' or '.join(fitting)}")
    kind = OUTPUT_KINDS[fitting[0]]
    if kind != "logits":
        text = "features" if kind == "features" else "a map of values"
        progress.note(f"{maps}, taken for {text}; if not, give --output {' or '.join(fitting[1:])}")
    return kind


def _add_channel(model: onnx.ModelProto, shape: Sequence[int]) -> None:
    """Make maps [B, H, W] of this shape [B, 1, H, W], in place."""
    (output,) = model.graph.output
    before, sizes = output.name, f"{output.name}.sizes"
    output.name = f"{before}.map"
    output.type.tensor_type.ClearField("shape")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1, *shape[1:]]), sizes))  # 0: as it is
    model.graph.node.append(onnx.helper.make_node("Reshape", [before, sizes], [output.name]))


def _write_simplified(file: Path, changed: ir.Model, path: Path, expected: Any, images: Any, tolerance: float) -> None:
    """Write the graph, and check that it is still the same function."""
    with exporter_boundary(file.name):
        ir.save(changed, path)
    error = float(np.linalg.norm(_outputs(path, images) - expected) / max(float(np.linalg.norm(expected)), 1e-30))
    if not error <= tolerance:
        raise ExportError(
            f"folding the constants of {file} changed its outputs by {error:.2g}; export it with another opset"
        )


def _own_subject(request: FilesRequest, metadata: Mapping[str, str]) -> Subject | None:
    """The subject of a file that edgevit wrote, by its metadata; None: another tool wrote it.

    Raises:
        CheckpointError: the metadata is damaged.
        OptionError: --output is given, or the file has levels of a detector, which only its model folder can judge.
    """
    if WRITER not in metadata:
        return None
    subject = open_onnx(request.model, "cpu").subject
    if request.output is not None:
        raise OptionError(f"{request.model} says itself that it gives {subject.output.noun}; leave --output out")
    if subject.output_kind == "boxes":
        raise OptionError(f"{request.model} is a part of a detector; export its model folder")
    return subject


def _judging(request: FilesRequest, subject: Subject, progress: Progress) -> Judging | None:
    """Open the images, if given; note the assumed classes of the outputs.

    Raises:
        OptionError: classes are given, and the outputs are not logits.
    """
    if request.data is None:
        return None
    of_classes = subject.output_kind == "logits"
    if not of_classes and (request.classes is not None or request.base_classes is not None):
        raise OptionError(f"{request.model} gives {subject.output.noun}; leave --classes and --base-classes out")
    try:
        judging = open_judging(
            subject,
            request.data,
            classes=request.classes,
            base_classes=request.base_classes,
            part=request.part,
            skip_bad_images=request.skip_bad_images,
            progress=progress,
        )
    except DataError as error:
        if not of_classes or request.output is not None or subject.class_names:
            raise
        raise DataError(f"{error}; if {request.model} gives features, give --output features") from error
    if of_classes and not subject.class_names:
        assumed = assumptions(
            request.model, judging.task, pretrained=False, base_classes=request.base_classes, overridden=(),
            release=subject.release,
        )  # fmt: skip
        progress.note(assumed.lines()[0])
    return judging


def _classes(subject: Subject, judging: Judging | None, progress: Progress) -> tuple[TargetClass, ...]:
    """The classes of an ONNX file: by its metadata, by the images, or by a file in its folder; none of features."""
    if subject.output_kind != "logits":
        return ()
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
    assumes: bool,
    progress: Progress,
) -> tuple[PreprocessingFields, tuple[str, ...]]:
    """The preprocessing for the input size of the file, and the parts that are assumed; notes the origin of each."""
    file, size = request.model, resolve_size(request.model, interface, request.input_size)
    options = {**request.preprocessing, "input_size": size, "crop_mode": request.crop_mode}
    try:
        preprocessing, origin = stated_preprocessing(file, metadata, options, release, of_models, assumes)
    except OptionError as error:
        if assumes or request.output is not None:
            raise
        raise OptionError(f"{error}; if {file} gives features, --output features is enough") from error
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
    return preprocessing, tuple(part for part, source in origin.items() if source == ASSUMED)


def _has_no_classes(request: FilesRequest, model: onnx.ModelProto) -> bool:
    """Whether the output is features or a map, by `--output` or by its stated number of axes."""
    if request.output is not None:
        return OUTPUT_KINDS[request.output] != "logits"
    return len(model.graph.output[0].type.tensor_type.shape.dim) > 2


def _write_onnx(
    request: FilesRequest,
    model: onnx.ModelProto,
    path: Path,
    batch: Batch,
    size: Sequence[int],
    kind: OutputKind | None,
    tolerance: float,
    progress: Progress,
) -> tuple[Structure, OutputKind, int]:
    """Write the same function with named parts; return these parts, the kind of its outputs, and their number.

    `kind` is known of a file of edgevit's own.
    """
    file = request.model
    count, first = (2, "batch") if batch == "dynamic" else (batch, batch)
    refuse_huge(file, [count, *size])
    images = np.random.default_rng(0).standard_normal((count, *size)).astype(np.float32)
    expected = expected_outputs(file, images, request.output_name)
    kind = kind or _kind_of(request, expected.shape, size, progress)
    output = output_of(kind, ())
    if isinstance(output, Map) and expected.ndim == 3:
        _add_channel(model, expected.shape)
        expected = expected[:, None]
    with progress.stage("import"):
        changed = simplified(file, model, [first, *size], output.noun)
        changed.graph.outputs[0].shape = ir.Shape([first, *expected.shape[1:]])
        if kind != "logits":
            changed.metadata_props[OUTPUT_KIND] = f'"{kind}"'  # in JSON
        structure = find_structure(changed.graph)
        name_nodes(changed.graph, structure)
        _write_simplified(file, changed, path, expected, images, tolerance)
    progress.note(f"recognised {len(structure.blocks)} blocks and {len(structure.norms)} layer normalisations")
    return structure, kind, expected.shape[-1 if kind == "features" else 1]


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
    release, own = read_release(file.parent), _own_subject(request, metadata)
    assumes = own is None and _has_no_classes(request, model)
    preprocessing, assumed = _prepared(request, interface, metadata, release, of_models, assumes, progress)
    size = preprocessing["input_size"]
    structure, kind, outputs = _write_onnx(
        request, model, folder.imported_onnx, batch, size, own.output_kind if own else None, tolerance, progress
    )
    if own is not None:
        subject = replace(own, preprocessing=preprocessing)
    else:
        of_classes = outputs if kind == "logits" else 0
        subject = Subject((), (), of_classes, preprocessing, release=release, output_kind=kind, origin=str(file))
    judging = _judging(request, subject, progress)
    classes = _classes(subject, judging, progress)
    document = ImportedDocument(
        file=file.name,
        file_sha256=file_sha256(file),
        weights_sha256=file_sha256(folder.imported_onnx),
        batch=batch,
        opset=opset,
        precision=precision,
        output_kind=kind,
        outputs=outputs,
        norms=structure.norms,
        blocks=structure.blocks,
        classes=classes,
        preprocessing=preprocessing,
        assumed=assumed,
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
        CheckpointError, ExportError: the file is damaged, puts out something else than logits, features or a map,
            or has operators that no board supports.
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
        alike = replace(
            before,
            edgevit=document.edgevit,
            macs=document.macs,
            params=document.params,
            answers={},
            probes={},
            targets=None,
        )
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
        crop_mode=None, output_name=None, output=None, preprocessing={}, batch="dynamic",
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
