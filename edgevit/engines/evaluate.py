"""Accuracy of an engine on its board, computed like that of a model folder or an ONNX file."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from edgevit.board.connection import Board
from edgevit.board.facts import examine
from edgevit.board.store import recorded_engine
from edgevit.engines.build import check_board
from edgevit.engines.gate import images_file, unlabelled_sample
from edgevit.engines.options import MIB, MOST_IMAGES, MOST_OUTPUTS
from edgevit.engines.outputs import all_outputs, classification, tidied, values_of
from edgevit.exporting.evaluate import Evaluation, ModelUnderTest, evaluate_opened
from edgevit.exporting.images import Subject
from edgevit.exporting.onnx import folder_subject
from edgevit.exporting.request import JudgeRequest
from edgevit.progress import Progress, Silent
from edgevit.records.engine import EngineRecord
from edgevit.records.model_folder import model_of

MOST_BYTES = 128 * MIB  # of the images of one job on the board


def _images_per_job(subject: Subject, record: EngineRecord) -> int:
    size = subject.preprocessing["input_size"]
    image_bytes: int = (8 if len(size) == 1 else 2) * math.prod(size)
    return max(1, min(MOST_BYTES // image_bytes, MOST_IMAGES, MOST_OUTPUTS // values_of(record.outputs)))


def _per_inference(record: EngineRecord, requested: int, progress: Progress) -> int:
    """The number of images per inference: as requested, within the limits of the engine."""
    least, _, most = record.batches
    batch = min(max(requested, least), most)
    if batch != requested:
        progress.note(
            f"{record.path.name} takes {least} to {most} images per inference: {batch} instead of {requested}"
        )
    return batch


def _predictor(
    board: Board,
    record: EngineRecord,
    order: Sequence[str],
    subject: Subject,
    batch: int,
    scratch: Path,
    progress: Progress,
) -> Callable[[Tensor], Tensor]:
    engine = board.put(record.path, record.sha256, progress)

    def predict(images: Tensor) -> Tensor:
        """Outputs [B, ...] of images [B, C, H, W], from images rounded to float16, as in the gate."""
        sample = unlabelled_sample(images, subject.output, images_file(scratch, record.key))
        args = {**classification(board, engine, sample, progress), "batch": batch}
        with tidied(board, [args["images"]]):  # each job has other images
            return all_outputs(board, args, record.outputs, order, sample, name=record.path.name, progress=progress)

    return predict


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
    with tempfile.TemporaryDirectory(prefix="edgevit-") as scratch:
        order = [output.name for output in folder.export_record().outputs]
        predict = _predictor(board, record, order, subject, batch, Path(scratch), progress)
        jobs = replace(request, batch_size=_images_per_job(subject, record))
        return evaluate_opened(ModelUnderTest("engine", predict, subject, folder), jobs, progress)
