"""The file of a model that is packaged, and what an application must know of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgevit.board.models import find_file
from edgevit.board.store import check_unaltered
from edgevit.errors import ExportError, OptionError
from edgevit.records.engine import EngineRecord, EngineTensor
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder, model_of


@dataclass(frozen=True)
class ServedModel:
    """A file with the records of its export and, if it is an engine, of its build."""

    file: Path
    sha256: str
    precision: str
    images: EngineTensor
    outputs: tuple[EngineTensor, ...]  # of the file: several for levels of a pyramid, or class token and patches
    export: ExportRecord
    engine: EngineRecord | None  # record of the engine's build; None: the file is an ONNX file

    @property
    def folder(self) -> Path:
        """The model folder."""
        return self.export.folder.absolute().parent

    @property
    def name(self) -> str:
        return os.path.basename(os.path.abspath(self.folder))

    @property
    def is_dynamic(self) -> bool:
        """Whether it takes any number of images."""
        return self.images.shape[0] < 0

    def copy(self, file: Path) -> None:
        """Copy the file, and the weights beside an ONNX file of more than 2 GB, whose name it states."""
        shutil.copyfile(self.file, file)
        weights = self.file.with_name(f"{self.file.name}.data")
        if weights.name in self.export.files:
            shutil.copyfile(weights, file.with_name(weights.name))

    def check_classes(self, application: str, divider: str) -> None:
        """Refuse a model whose classes cannot be written to a file.

        Raises:
            ExportError: it names no classes, or a name contains the character between two names.
        """
        if not self.export.classes:
            output = self.export.outputs[0].name
            reason = f"gives {output}; "
            if output == "logits":
                reason = "does not name its own; `edgevit base --base-classes FILE` names those of a base, and "
            raise ExportError(f"--{application} serves classes, and {self.folder} {reason}--triton serves any model")
        for entry in self.export.classes:
            if divider in entry.name or "\n" in entry.name:
                raise ExportError(
                    f"the class {entry.name!r} contains {divider!r}, which stands between classes for --{application}; "
                    "rename it and derive again"
                )


def find_served(model: Path, precision: str | None) -> ServedModel:
    """Choose the file of a model folder, or take an engine.

    Raises:
        CheckpointError, ExportError: the model is not exported, the file is missing or altered, or of another model.
        EngineError: the engine is altered, or of another model.
        OptionError: the engine is not of this precision.
    """
    path = model.absolute()
    folder = ModelFolder(path) if model.is_dir() else model_of(path)
    if folder.is_imported and (document := folder.imported()).assumed:
        raise ExportError(f"what serves a model prepares its images, and {document.assumed_text}")
    if model.is_dir():
        file = find_file(model, precision, "cuda")  # what is served runs on a GPU
        export = ModelFolder(model).export_record()
        first = -1 if export.batch == "dynamic" else export.batch
        images, *outputs = (
            EngineTensor(tensor.name, tensor.dtypes[file.path.name], (first, *map(int, tensor.shape[1:])))
            for tensor in (export.inputs[0], *export.outputs)
        )
        return ServedModel(file.path, file.sha256, str(file.precision), images, tuple(outputs), export, None)
    engine = check_unaltered(model_of(path).engine_record(path))
    if precision not in (None, engine.precision):
        raise OptionError(f"{model} is {engine.precision}, and --precision is {precision}; leave it out")
    export = model_of(path).export_record()
    return ServedModel(path, engine.sha256, engine.precision, engine.inputs[0], engine.outputs, export, engine)
