"""`edgevit.export` and `edgevit.evaluate`: what needs no board is done by `edgevit/exporting/`, and engines here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from edgevit.board.connection import open_board
from edgevit.engines.build import build_engine
from edgevit.engines.evaluate import evaluate_engine
from edgevit.engines.request import EvaluateRequest, ExportRequest
from edgevit.exporting.evaluate import Evaluation
from edgevit.exporting.evaluate import run as judge
from edgevit.exporting.onnx import run as export_files
from edgevit.progress import Progress
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportRecord
from edgevit.records.kinds import PLACE
from edgevit.records.model_folder import ModelFolder
from edgevit.request import as_request, takes_options


@dataclass(frozen=True, kw_only=True)
class Export(ExportRecord):
    """What came of an export: export.json, and the engine that was built or reused; None: none was asked for."""

    engine: EngineRecord | None = field(default=None, metadata=PLACE)  # which has a file of its own


@takes_options(ExportRequest)
def export(
    model: str | Path | ExportRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> Export:
    """Write `model.fp32.onnx`, `model.fp16.onnx` and `export.json` into `export/` of a model folder.

    An ONNX file that edgevit did not make is imported first, into the new folder `out`, and that is exported.

    An earlier export is replaced, and only when every check of the new one has passed. Logits are compared with those
    of the model as it was derived, so that padding is checked, too. Accuracy is measured on `data`, or on the images
    that the model was derived from; where these are gone it is left out with a warning.

    With `trt`, an engine is built on `board` or on this machine, and stored under `export/engines/` if it classifies
    there as fp32 does here; files that are up to date are then kept, and so is an engine.

    Args:
        model: a model folder, or a whole request.
        options: the fields of `ExportRequest`.

    Raises:
        OptionError: also of an option that there is not.
        ExportError: a check failed; the message says which.
        CheckpointError, DataError, OutputError: the model, the images or the disk is at fault.
        EngineError: no precision gives a right engine; the class that loses most is named.
        UnfitBoardError, ProfileError, BoardError: the board is not the one that was meant, or cannot do it.
    """
    return run_export(as_request(ExportRequest, "model", model, options), progress)


def run_export(request: ExportRequest, progress: Progress | None = None) -> Export:
    """Do what is asked; `export` says what is raised."""
    request.check()
    if not request.trt:
        return _told(export_files(request, progress), None)
    with open_board(request.board, ssh_config=request.ssh_config) as board:
        engine = build_engine(request, board, progress)
    return _told(ModelFolder(request.folder).export_record(), engine)


def _told(record: ExportRecord, engine: EngineRecord | None) -> Export:
    return Export(**{one.name: getattr(record, one.name) for one in fields(record)}, engine=engine)


@takes_options(EvaluateRequest)
def evaluate(
    model: str | Path | EvaluateRequest | None = None,
    data: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Classify the images of one part of the data, "test" or "validation".

    Without `data`, a model folder is judged on the images it was derived from; `seed` is that of its split unless
    given. `classes` are those of a base, or some of a derived model's own, by name or by position. Accuracy is that of
    the logits; of a model that may call an image `other` it is counted beside it how often it does.

    Args:
        model: a timm name with `checkpoint` or `pretrained`, a model folder, an .onnx file that `export` wrote, an
            engine, which classifies on the `board` that it was built for or on this machine, or a whole request.
        options: the fields of `EvaluateRequest`.

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: the model cannot be opened as asked, or
            there is no such option.
        DataError: the images are missing, or their classes cannot be matched with the model's.
        ModelError: a logit is not a finite number.
        EngineError, UnfitBoardError, BoardError: the engine is of another board or altered, or failed there.
    """
    given = options if data is None else {**options, "data": data}
    return run_evaluate(as_request(EvaluateRequest, "model", model, given), progress)


def run_evaluate(request: EvaluateRequest, progress: Progress | None = None) -> Evaluation:
    """Do what is asked; `evaluate` says what is raised."""
    request.check()
    if not request.of_engine:
        return judge(request, progress)
    with open_board(request.board, ssh_config=request.ssh_config) as board:
        return evaluate_engine(request, board, progress)
