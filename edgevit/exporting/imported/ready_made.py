"""A ready-made ONNX file beside derived models: imported, and judged on the same validation and test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgevit.data.assumptions import order_line
from edgevit.data.classes import base_order, folders_are_imagenet
from edgevit.data.neighbours import near_chance
from edgevit.data.sources import open_source
from edgevit.data.task import Split, reopen
from edgevit.errors import CheckpointError, DataError, OutputError
from edgevit.exporting.imported.importing import import_file
from edgevit.exporting.imported.reading import check_nodes, read_file, read_interface
from edgevit.exporting.imported.widening import widen
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import OnnxModel
from edgevit.network.output import Logits
from edgevit.progress import Progress
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DataRecord, JudgedPart
from edgevit.records.imported import ImportedDocument
from edgevit.records.model import TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256, new_folder

_PARTS: tuple[JudgedPart, ...] = ("validation", "test")
_BATCH = 32
NAMES = "id2label in a config.json beside it"  # what names the outputs of a file


def check_classifier(file: Path) -> None:
    """Check that a file is an image classifier that a board can run.

    Raises:
        CheckpointError, ExportError: it is not.
    """
    model = read_file(file)
    check_nodes(file, model)
    widen(model)
    read_interface(file, model.graph)


def judge_ready_made(
    file: Path, folder: ModelFolder, data: DataRecord, of_models: Mapping[str, Any], progress: Progress
) -> ImportedDocument:
    """Import the file, and record which images of a derivation it classifies correctly; done once, and kept.

    Args:
        folder: of the imported file; written if it is not there.
        data: the images of the derived models.
        of_models: their preprocessing, which is used for what neither the file nor the JSON files beside it state.

    Raises:
        CheckpointError, ExportError: the file is damaged, no classifier, or has operators that no board supports.
        DataError: its outputs are not those of the classes, or the images are not there.
        OptionError: the file takes images of another size.
        OutputError: the folder has another file, or was judged on other images.
    """
    if not folder.is_imported:
        with new_folder(folder.path) as temporary:
            written = ModelFolder(temporary)
            document = import_file(FilesRequest(model=file, out=folder.path), written, progress, of_models)
            _refuse_other_outputs(document, file)
            document = _judged(document, written.imported_onnx, file, data, progress)
            written.write_imported(document)
        return document
    document = folder.imported()
    if document.file_sha256 != file_sha256(file):
        raise OutputError(
            f"{folder.path} has another {document.file} than {file}; remove the folder, or rename the file"
        )
    _refuse_other_outputs(document, file)
    if document.is_judged_on(data):
        progress.note(f"{folder.path} has the answers of {file.name} to these images: reused")
        return document
    if document.data is not None and document.data.images_sha256 != data.images_sha256:
        raise OutputError(
            f"{folder.path} is {document.file} for {len(document.classes)} classes of {document.data.data}, and the "
            f"models are for {len(data.classes)} of {data.data}; remove the folder"
        )
    document = _judged(document, folder.imported_onnx, file, data, progress)
    folder.write_imported(document)
    return document


def _refuse_other_outputs(document: ImportedDocument, file: Path) -> None:
    """Raise CheckpointError if the file is no classifier."""
    if document.output_kind != "logits":
        raise CheckpointError(f"{file} gives {document.output_text}, and is compared by classes; leave it out")


def _judged(
    document: ImportedDocument, onnx: Path, file: Path, data: DataRecord, progress: Progress
) -> ImportedDocument:
    """The document with the classes and images of the derived models, and the answers to these."""
    classes = _classes(document, file, data, progress)
    task = reopen(data, document.preprocessing, progress, check=_PARTS)
    model, output = OnnxModel(onnx), Logits(tuple(c.base_index for c in classes))
    answers = {part: _right(model, output, task.part(part), f"{file.name}, {part}", progress) for part in _PARTS}
    test = answers["test"]
    if near_chance(test.right, test.images, len(classes)):
        progress.warn(
            f"{file} is right on {test.right / test.images:.1%} of {test.images} test images, which is near chance; "
            f"check the order of its outputs ({NAMES}) and its preprocessing"
        )
    return replace(
        document, classes=classes, data=data, seed=data.seed, validation_fraction=data.validation_fraction,
        answers=answers,
    )  # fmt: skip


def _classes(document: ImportedDocument, file: Path, data: DataRecord, progress: Progress) -> tuple[TargetClass, ...]:
    """The classes of the derived models with their outputs in the file.

    Raises:
        DataError: the file has other outputs.
    """
    targets, outputs = [c.name for c in data.classes], document.outputs
    order = {c.name: c.base_index for c in document.classes} or _assumed_order(file, outputs, targets, data.data)
    if missing := [name for name in targets if name not in order]:
        raise DataError(f"{file} has no output for the class {missing[0]!r}; name its outputs by {NAMES}")
    classes = tuple(TargetClass(name, order[name]) for name in targets)
    if not document.classes:
        pairs = [(c.name, c.base_index) for c in classes]
        progress.note(f"{file.name}: {order_line(pairs, outputs, 'folders', NAMES)}")
    return classes


def _assumed_order(file: Path, outputs: int, targets: Sequence[str], data: str) -> Mapping[str, int]:
    """Assume the output of each class by the number of outputs: target classes, all classes of the data, or ImageNet's.

    Raises:
        DataError: there is another number of outputs.
    """
    names = open_source(data).class_names
    if outputs == len(targets):
        return {name: i for i, name in enumerate(name for name in names if name in targets)}
    if outputs == len(names) or folders_are_imagenet(names, outputs):
        return base_order(names, None, outputs)
    raise DataError(
        f"{file} has {outputs} outputs, expected {len(targets)} (the classes of the models) or {len(names)} (those "
        f"of {data}); name its outputs by {NAMES}"
    )


def _right(model: OnnxModel, output: Logits, images: Split, stage: str, progress: Progress) -> RightImages:
    right: list[bool] = []
    with progress.stage(stage, len(images), "image") as shown:
        for batch, labels in images.batches(_BATCH):
            logits = model.predict(batch)
            if not bool(logits.isfinite().all()):
                raise CheckpointError(f"{model.path} gives logits that are not finite; export it again")
            right += output.score(logits, labels).bool().tolist()
            shown.update(len(right))
    return RightImages.of(right)
