"""A ready-made ONNX file beside derived models: imported, and judged on the same images by the same figures."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from torch import Tensor, nn

from edgevit.data.assumptions import order_line
from edgevit.data.classes import base_order, folders_are_imagenet
from edgevit.data.neighbours import near_chance
from edgevit.data.sources import open_source
from edgevit.data.task import Split, reopen, with_labels
from edgevit.errors import CheckpointError, DataError, OutputError
from edgevit.exporting.imported.importing import WRITER, expected_outputs, fitting_outputs, import_file
from edgevit.exporting.imported.reading import check_nodes, read_file, read_interface
from edgevit.exporting.imported.widening import widen
from edgevit.exporting.probes import Labelled, probe_parts, read_features
from edgevit.exporting.request import OUTPUT_KINDS, FilesRequest
from edgevit.exporting.session import OUTPUT_KIND, OnnxModel
from edgevit.exporting.targets import Targets, judge_maps, targets_of
from edgevit.network.folder import load
from edgevit.network.output import Logits, Map, output_of
from edgevit.progress import Progress
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DataRecord, JudgedPart
from edgevit.records.imported import ImportedDocument
from edgevit.records.model import OutputKind, TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256, new_folder

_PARTS: tuple[JudgedPart, ...] = ("validation", "test")
_BATCH = 32
NAMES = "id2label in a config.json beside it"  # what names the outputs of a file
_WORDS = {kind: word for word, kind in OUTPUT_KINDS.items()}  # of --output


@dataclass(frozen=True)
class DerivedModels:
    """What a ready-made file is to stand beside, and what both are judged by."""

    data: DataRecord  # their images
    preprocessing: Mapping[str, Any]  # used for what neither the file nor the JSON files beside it state
    kind: OutputKind = "logits"
    probe: tuple[str, ...] = ()  # probes of features
    folder: Path | None = None  # of one of them, whose module may score maps itself; None: they give no maps

    @classmethod
    def of(cls, model: ModelFolder, probe: Sequence[str] = ()) -> DerivedModels:
        """What the model in a folder was derived from and gives."""
        derivation, document = model.derivation(), model.document()
        assert derivation is not None and derivation.data is not None
        return cls(derivation.data, document.preprocessing, document.output_kind, tuple(probe), model.path)

    def targets(self, preprocessing: Mapping[str, Any]) -> Targets:
        """The test images of maps, so prepared, with their targets; raises as `find_targets` and `reopen` do."""
        return targets_of(reopen(self.data, preprocessing, check=("test",)).test, self.data.data)

    def scoring(self) -> nn.Module | None:
        """The user's module, if it scores maps itself."""
        if self.folder is None or self.kind in ("logits", "features"):
            return None
        module = load(self.folder).module
        return module if hasattr(module, "score") else None


def check_ready_made(
    file: Path, kind: OutputKind, size: Sequence[int] | None = None, *, own_score: bool = False
) -> None:
    """Check that a board can run a file, and that it gives for images what models of this kind give.

    Args:
        size: of the images, [3, H, W], where the file does not fix it; None: it is then not run.
        own_score: whether maps are scored by a function of the user's, and may then be of any size.

    Raises:
        CheckpointError, ExportError: it is not.
    """
    model = read_file(file)
    check_nodes(file, model)
    stated = _stated_kind(model)
    widen(model)
    if len(model.graph.output) > 1:
        name, path = (shlex.quote(text) for text in (model.graph.output[0].name, str(file)))
        raise CheckpointError(
            f"{file} has {len(model.graph.output)} outputs, and one is compared: `edgevit export {path} --output-name "
            f"{name} --out DIR` writes that one alone to DIR/export/model.fp32.onnx, to be given here"
        )
    interface = read_interface(file, model.graph)
    sides = size if None in interface.sizes else interface.sizes
    if sides is None or any(fixed not in (None, side) for fixed, side in zip(interface.sizes, sides, strict=True)):
        return  # the import tells which size is missing, or another
    count = 2 if interface.batch == "dynamic" else interface.batch
    images = np.random.default_rng(0).standard_normal((count, *sides)).astype(np.float32)
    shape = expected_outputs(file, images, None).shape
    maps = f"{file} maps {list(images.shape)} to {list(shape)}"
    if kind != stated if stated is not None else _WORDS[kind] not in fitting_outputs(shape):
        raise CheckpointError(f"{maps}, and the models give {_given(kind)}; leave it out")
    if kind not in ("logits", "features") and not own_score and shape[-2:] != images.shape[-2:]:
        raise CheckpointError(
            f"{maps}, and target maps are resized to {images.shape[-2]} x {images.shape[-1]}, as the images: end it "
            "with an interpolation to their size"
        )


def _stated_kind(model: onnx.ModelProto) -> OutputKind | None:
    """What a file of edgevit's own says that it gives; None: another program wrote it."""
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if WRITER not in metadata:
        return None
    return cast("OutputKind", metadata.get(OUTPUT_KIND, '"logits"').strip('"'))


def _given(kind: OutputKind) -> str:
    """What models of this kind give for an image, in words."""
    return {"logits": "a number for each class", "features": "features"}.get(kind, f"a map of {kind}")


def judge_ready_made(file: Path, folder: ModelFolder, models: DerivedModels, progress: Progress) -> ImportedDocument:
    """Import the file, and judge it on the images of a derivation; done once, and kept.

    Classifiers are judged by their answers, features by probes, and maps by the targets that the data has.

    Args:
        folder: of the imported file; written if it is not there.

    Raises:
        CheckpointError, ExportError: the file is damaged, gives something else than the models, or has operators that
            no board supports.
        DataError: its outputs are not those of the classes, its maps have not the size of their targets, or the images
            are not there.
        OptionError: the file takes images of another size.
        OutputError: the folder has another file, or was judged on other images.
    """
    if not folder.is_imported:
        module = models.scoring()
        check_ready_made(file, models.kind, models.preprocessing["input_size"], own_score=module is not None)
        with new_folder(folder.path) as temporary:
            written = ModelFolder(temporary)
            says_itself = models.kind == "logits" or _stated_kind(read_file(file)) is not None
            output = None if says_itself else _WORDS[models.kind]
            request = FilesRequest(model=file, out=folder.path, output=output)
            document = import_file(request, written, progress, models.preprocessing)
            _refuse_other_outputs(document, file, models.kind)
            document = _judged(document, written.imported_onnx, file, models, progress)
            written.write_imported(document)
        return document
    document, data = folder.imported(), models.data
    if document.file_sha256 != file_sha256(file):
        raise OutputError(
            f"{folder.path} has another {document.file} than {file}; remove the folder, or rename the file"
        )
    _refuse_other_outputs(document, file, models.kind)
    known = document.targets  # of masks that may have changed
    same_masks = known is None or models.targets(document.preprocessing).sha256() == known.targets_sha256
    if document.is_judged_on(data, models.probe) and same_masks:
        progress.note(f"{folder.path} has the answers of {file.name} to these images: reused")
        return document
    if document.data is not None and document.data.images_sha256 != data.images_sha256:
        before, now = (
            (f"{len(one.classes)} classes of " if one.classes else "") + one.data for one in (document.data, data)
        )
        raise OutputError(
            f"{folder.path} is {document.file} for images of {before}, and the models are for others, of {now}; remove "
            "the folder"
        )
    document = _judged(document, folder.imported_onnx, file, models, progress)
    folder.write_imported(document)
    return document


def _refuse_other_outputs(document: ImportedDocument, file: Path, kind: OutputKind) -> None:
    """Raise CheckpointError if the file gives something else than the models."""
    if document.output_kind != kind:
        raise CheckpointError(f"{file} gives {document.output_text}, and the models give {_given(kind)}; leave it out")


def _judged(
    document: ImportedDocument, onnx_file: Path, file: Path, models: DerivedModels, progress: Progress
) -> ImportedDocument:
    """The document with the images of the derived models, and how it does on these."""
    data = models.data
    document = replace(document, data=data, seed=data.seed, validation_fraction=data.validation_fraction)
    model = OnnxModel(onnx_file)
    if models.kind == "logits":
        return _judged_by_classes(document, model, file, data, progress)
    if models.kind == "features":
        progress.note(f"{file.name}: what it gives, {document.output_text}, is judged by {', '.join(models.probe)}")
        task = with_labels(reopen(data, document.preprocessing, progress))

        def read(images: Split) -> Labelled:
            with progress.stage(f"{file.name}, features", len(images), "image") as stage:
                return read_features(model.predict, images, _BATCH, 0, stage.update)

        return replace(document, probes=probe_parts(models.probe, task, read))
    output = output_of(models.kind, ())
    assert isinstance(output, Map)
    lowest, highest = math.inf, -math.inf

    def predict(images: Tensor) -> Tensor:
        nonlocal lowest, highest
        maps = model.predict(images)
        lowest, highest = min(lowest, float(maps.min())), max(highest, float(maps.max()))
        return maps

    score = judge_maps(
        predict,
        output,
        models.targets(document.preprocessing),
        models.scoring(),
        owner=str(file),
        batch_size=_BATCH,
        progress=progress,
    )
    if output.kind == "foreground" and not score.own and lowest >= 0 and highest <= 1:
        raise CheckpointError(
            f"{file} gives values from {lowest:.2g} to {highest:.2g}, as of probabilities, and the models give logits, "
            "which are above 0 in the foreground; export it without the sigmoid"
        )
    return replace(document, targets=score)


def _judged_by_classes(
    document: ImportedDocument, model: OnnxModel, file: Path, data: DataRecord, progress: Progress
) -> ImportedDocument:
    """The document with the classes of the derived models, and the answers to their images."""
    classes = _classes(document, file, data, progress)
    task = reopen(data, document.preprocessing, progress, check=_PARTS)
    output = Logits(tuple(c.base_index for c in classes))
    answers = {
        part: _right(model, output, task.part(part), task.class_names, f"{file.name}, {part}", progress)
        for part in _PARTS
    }
    test = answers["test"]
    if near_chance(test.right, test.images, len(classes)):
        progress.warn(
            f"{file} is right on {test.right / test.images:.1%} of {test.images} test images, which is near chance; "
            f"check the order of its outputs ({NAMES}) and its preprocessing"
        )
    return replace(document, classes=classes, answers=answers)


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


def _right(
    model: OnnxModel, output: Logits, images: Split, names: Sequence[str], stage: str, progress: Progress
) -> RightImages:
    right: list[bool] = []
    with progress.stage(stage, len(images), "image") as shown:
        for batch, labels in images.batches(_BATCH):
            logits = model.predict(batch)
            if not bool(logits.isfinite().all()):
                raise CheckpointError(f"{model.path} gives logits that are not finite; export it again")
            right += output.score(logits, labels).bool().tolist()
            shown.update(len(right))
    return RightImages.of(right, {name: images.labels.count(i) for i, name in enumerate(names)})
