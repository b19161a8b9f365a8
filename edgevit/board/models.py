"""Choose the file of a model to measure: the exported ONNX file, or the engine that was built for this board."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgevit.board.facts import BoardFacts
from edgevit.board.roofline import Ceiling, least_bytes, roofline
from edgevit.board.store import find_engine, recorded_engine
from edgevit.errors import CheckpointError
from edgevit.records.belonging import file_fault
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder, export_of, model_of
from edgevit.records.names import WEIGHTS_ALONE, suffix_of
from edgevit.records.precisions import usual_precision
from edgevit.records.writing import file_sha256


@dataclass(frozen=True)
class Work:
    """The cost of one image, for the roofline."""

    macs: int
    params: int
    values: int  # number of pixels that go in and of outputs that come out, per image

    def least_s(self, limits: Ceiling, batch: int, precision: str) -> float:
        """The lower bound on the time of one inference."""
        moved = least_bytes(self.params, self.values, batch=batch, precision=precision)
        return roofline(limits, batch * self.macs, moved, precision).least_s


@dataclass(frozen=True)
class Measurable:
    """A file that a runner can measure."""

    path: Path
    sha256: str
    precision: str | None
    label: str  # name of the model folder, or of the file
    work: Work | None = None  # cost of one image; None: a bare file does not state it


def find_file(model: Path, precision: str | None, provider: str | None) -> Measurable:
    """Return the given file, or the exported file of a model folder.

    Raises:
        CheckpointError, ExportError: the model is missing, not exported, or not the file that was exported; or the
            export is of another model.
    """
    if model.is_dir():
        folder = ModelFolder(model)
        precision = precision or folder.own_precision or usual_precision(on_cpu=provider in (None, "cpu"))
        path = _find_exported(folder, precision)
        record = folder.export_record() if folder.export.record_file.is_file() else None
        if record is None or path.name not in record.files:
            raise CheckpointError(
                f"{path} is not listed in {folder.export.record_file}: the export is incomplete, export again"
            )
        return Measurable(
            path.absolute(), _checked_sha256(path, record), precision, model.absolute().name, _work(folder)
        )
    if not model.is_file():
        raise CheckpointError(f"no model at {model}: expected a model folder, an ONNX file or an engine")
    if suffix_of(model) in WEIGHTS_ALONE:
        raise CheckpointError(
            f"{model} is not an ONNX file: it holds weights alone; try `edgevit base NAME "
            f"--checkpoint {shlex.quote(str(model))} --out DIR` and `edgevit export DIR`, and measure that"
        )
    return Measurable(model.absolute(), _checked_sha256(model, _export_record_of(model)), precision, model.stem)


def find_engine_file(folder: Path, facts: BoardFacts, batches: Sequence[int], precision: str | None) -> Measurable:
    """Return the engine of a model folder that was built for the board with these facts.

    Raises:
        EngineError: the folder has no engine, or only one for another board or other batches.
    """
    engine = find_engine(folder, facts, batches, precision)
    return Measurable(
        engine.path.absolute(), engine.sha256, engine.precision, folder.absolute().name, _work(ModelFolder(folder))
    )


def of_this_board(file: Measurable, facts: BoardFacts) -> Measurable:
    """Check an engine given by path against its record, and add the content of the record.

    A file without a record is accepted unchanged.

    Raises:
        EngineError: it was built for another board, or altered since.
    """
    if suffix_of(file.path) != ".engine" or not file.path.with_suffix(".json").is_file():
        return file
    record = recorded_engine(file.path, facts)
    return replace(file, precision=record.precision, work=_work(model_of(record.path)))


def check_sendable(file: Measurable, host: str) -> None:
    """Check that a file is complete before it is sent alone.

    Raises:
        CheckpointError: an ONNX file has its weights in other files.
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx.external_data_helper import uses_external_data

    if suffix_of(file.path) != ".onnx":
        return
    try:
        model = onnx.load(file.path, load_external_data=False)
    except (DecodeError, OSError, ValueError):
        return  # whoever runs it says what is wrong with it
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        raise CheckpointError(
            f"{file.path} has its weights in other files, which are not sent to {host}; `edgevit export` writes one "
            "file, and so does onnx.save_model(model, FILE, save_as_external_data=False) below 2 GB"
        )


def _work(folder: ModelFolder) -> Work | None:
    """Read model.json, where there is one."""
    if not folder.is_model:
        return None
    spec = folder.spec()
    return Work(spec.macs, spec.params, math.prod(spec.preprocessing["input_size"]) + spec.outputs)


def _find_exported(folder: ModelFolder, precision: str) -> Path:
    """Return the exported file of that precision in a model folder."""
    path = folder.export.onnx(precision)
    if path.is_file():
        return path
    others = folder.export.onnx_files()
    if others:
        names = ", ".join(file.name for file in others)
        raise CheckpointError(f"{path} is missing, and {names} is there: try another --precision")
    raise CheckpointError(
        f"{folder.path} has no {path.relative_to(folder.path)}: "
        f"run `edgevit export {shlex.quote(str(folder.path))}` first"
    )


def _export_record_of(path: Path) -> ExportRecord | None:
    """Read the export.json beside a file, if it lists the file."""
    export = export_of(path)
    record = export.record() if export.record_file.is_file() else None
    return record if record is not None and path.name in record.files else None


def _checked_sha256(path: Path, record: ExportRecord | None) -> str:
    """Hash the file, and check it against the record if there is one."""
    try:
        if record is None:
            return file_sha256(path)
        listed = record.files[path.name]
        if fault := file_fault(path, listed.sha256, export_of(path).record_file):
            raise CheckpointError(f"{fault}; export again")
        return listed.sha256
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
