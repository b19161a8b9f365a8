"""The functions `edgevit.export` and `edgevit.evaluate`, of files and of engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from edgevit.board.connection import Board, open_board
from edgevit.board.facts import examine
from edgevit.board.store import recorded_engine
from edgevit.derivation.request import BaseRequest
from edgevit.derivation.session.base import base
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.engines.build import build_engine, check_board
from edgevit.engines.options import MIB, MOST_IMAGES, MOST_OUTPUTS
from edgevit.engines.outputs import opened_engine, values_of
from edgevit.engines.request import EvaluateRequest, ExportRequest
from edgevit.errors import OptionError
from edgevit.exporting.evaluate import Evaluation, ModelUnderTest, evaluate_files, evaluate_opened
from edgevit.exporting.images import Subject
from edgevit.exporting.onnx import export_files, folder_subject
from edgevit.exporting.request import JudgeRequest
from edgevit.network.from_module import path_of
from edgevit.progress import Progress, Silent
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportRecord
from edgevit.records.kinds import PLACE
from edgevit.records.model_folder import ModelFolder, model_of
from edgevit.request import request_of, takes_options

_MOST_BYTES = 128 * MIB  # size of the images that are held at once


@dataclass(frozen=True, kw_only=True)
class Export(ExportRecord):
    """The result of an export: export.json, and the engine."""

    # Record of the engine, which has its own file; None: not requested.
    engine: EngineRecord | None = field(default=None, metadata=PLACE)


def _in_a_folder(keywords: dict[str, Any], function: str) -> dict[str, Any]:
    """Write a module that is to be exported to the new folder `out`."""
    module = keywords.get("model")
    if not isinstance(module, nn.Module):
        return keywords
    if "out" not in keywords:
        raise OptionError(f"{function} writes a module to a new model folder; give out=FOLDER")
    keywords = {**keywords, "model": Path(keywords["out"])}
    del keywords["out"]
    request_of(ExportRequest, keywords, function)  # refuse wrong options before anything is written
    base(BaseRequest(name=path_of(module, function), out=keywords["model"]))
    return keywords


@takes_options(ExportRequest, "model", prepare=_in_a_folder, also=IN_MEMORY)
def export(request: ExportRequest, progress: Progress | None = None) -> Export:
    """Write `model.fp32.onnx`, `model.fp16.onnx` and `export.json` into `export/` of a model folder.

    An ONNX file that edgevit did not write is first imported into the new folder `out`, and a module is written to it.

    An earlier export is replaced only if all checks of the new one pass. Logits are compared with those of the derived
    model, before padding. Accuracy is measured on `data`, or on the images that the model was derived from; if these
    are missing it is skipped with a warning.

    With `trt`, an engine is built on `board` or on this machine, and stored under `export/engines/` if it classifies
    images there as fp32 does on the host; files and engines that are up to date are reused.

    Raises:
        OptionError: an option is unknown or has a wrong value.
        ExportError: a check failed; the message names it.
        CheckpointError, DataError, OutputError: the model, the images or the output cannot be used.
        EngineError: no precision level gives a correct engine; the message names the class with the largest loss.
        UnfitBoardError, ProfileError, BoardError: the board does not match the profile, or cannot build the engine.
    """
    request.check()
    if not request.trt:
        return _with_engine(export_files(request, progress), None)
    with open_board(request.board, ssh_config=request.ssh_config) as board:
        engine = build_engine(request, board, progress)
    return _with_engine(ModelFolder(request.folder).export_record(), engine)


def _with_engine(record: ExportRecord, engine: EngineRecord | None) -> Export:
    return Export(**{field.name: getattr(record, field.name) for field in fields(record)}, engine=engine)


@takes_options(EvaluateRequest, "model", "data", prepare=partial(as_files, base="model"), also=IN_MEMORY)
def evaluate(request: EvaluateRequest, progress: Progress | None = None) -> Evaluation:
    """Classify the images of one part of the data, "test" or "validation".

    Without `data`, a model folder is evaluated on the images that it was derived from; `seed` is that of its split
    unless given. `classes` are those of a base, or some of those of a derived model, by name or by position. Accuracy
    is that of the logits; images that the model classifies as `other` are counted in addition.

    Options that differ from those of the command:
        data: also arrays, a data set of PIL images or a DataLoader.
        model: a timm name with `checkpoint` or `pretrained`, a module, a model folder, an .onnx file that `export`
            wrote, or an engine, which classifies on the `board` that it was built for or on this machine.

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: the model cannot be opened, or an option
            is unknown.
        DataError: the images are missing, or their classes do not match those of the model.
        ModelError: a logit is not finite.
        EngineError, UnfitBoardError, BoardError: the engine is of another board or altered, or failed.
    """
    request.check()
    if not request.of_engine:
        return evaluate_files(request, progress)
    with open_board(request.board, ssh_config=request.ssh_config) as board:
        return evaluate_engine(request, board, progress)


def _at_once(subject: Subject, record: EngineRecord, batch: int) -> int:
    """The number of images whose outputs are held at once: whole batches."""
    size = subject.preprocessing["input_size"]
    image_bytes: int = (8 if len(size) == 1 else 2) * math.prod(size)
    most = min(_MOST_BYTES // image_bytes, MOST_IMAGES, MOST_OUTPUTS // values_of(record.outputs))
    return batch * max(1, most // batch)


def _per_inference(record: EngineRecord, requested: int, progress: Progress) -> int:
    """The number of images per inference: as requested, within the limits of the engine."""
    least, _, most = record.batches
    batch = min(max(requested, least), most)
    if batch != requested:
        progress.note(
            f"{record.path.name} takes {least} to {most} images per inference: {batch} instead of {requested}"
        )
    return batch


def evaluate_engine(request: JudgeRequest, board: Board, progress: Progress | None = None) -> Evaluation:
    """Classify the images of one part of the data by an engine on a board; see `edgevit.evaluate`.

    The model folder of the engine has its classes, its preprocessing and, unless given, its data.

    Raises:
        EngineError: the engine has no record or no model folder, was built for another board or from other weights,
            or was altered.
        UnfitBoardError: the board has no TensorRT or no GPU.
        BoardError: the board was not reached, or the engine failed.
        CheckpointError, DataError, ModelError, OptionError, UnknownNameError: as for `edgevit.evaluate`.
    """
    request.check()
    progress, path = progress or Silent(), Path(request.model)
    facts = examine(board, progress)
    check_board(board.host, facts, None)
    record, folder = recorded_engine(path.absolute(), facts), model_of(path.absolute())
    subject = folder_subject(folder)
    batch = _per_inference(record, request.batch_size, progress)
    order = [output.name for output in folder.export_record().outputs]
    engine = board.put(record.path, record.sha256, progress)
    with opened_engine(board, engine, record.inputs, record.outputs, order, batch, progress) as predict:
        request = replace(request, batch_size=_at_once(subject, record, batch))
        return evaluate_opened(ModelUnderTest("engine", predict, subject, folder), request, progress)
