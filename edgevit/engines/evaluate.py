"""Accuracy of an engine on its board, computed like that of a model folder or an ONNX file."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.board.answers import wrong_answer
from edgevit.board.connection import Board
from edgevit.board.facts import examine
from edgevit.board.store import recorded_engine
from edgevit.engines.build import check_board
from edgevit.engines.builder import classification, tidied
from edgevit.engines.gate import images_file, unlabelled_sample
from edgevit.engines.options import MIB
from edgevit.exporting.evaluate import Evaluation, ModelUnderTest, evaluate_opened
from edgevit.exporting.images import Subject
from edgevit.exporting.onnx import folder_subject
from edgevit.exporting.request import JudgeRequest
from edgevit.progress import Progress, Silent
from edgevit.records.engine import EngineRecord
from edgevit.records.model_folder import model_of

# Limits of one job on the board: images are files there, and logits are returned as text.
MOST_BYTES, MOST_IMAGES, MOST_LOGITS = 128 * MIB, 1000, 2_000_000


def _images_per_job(subject: Subject) -> int:
    image_bytes: int = 2 * math.prod(subject.preprocessing["input_size"])
    return max(1, min(MOST_BYTES // image_bytes, MOST_IMAGES, MOST_LOGITS // subject.outputs))


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
    board: Board, record: EngineRecord, subject: Subject, batch: int, scratch: Path, progress: Progress
) -> Callable[[Tensor], Tensor]:
    engine = board.put(record.path, record.sha256, progress)

    def predict(images: Tensor) -> Tensor:
        """Logits [B, outputs] of images [B, C, H, W], from images rounded to float16, as in the gate."""
        sample = unlabelled_sample(images, range(subject.outputs), images_file(scratch, record.key))
        args = {**classification(board, engine, sample, progress), "batch": batch, "logits": True}

        def read(answer: dict[str, Any]) -> Tensor:
            return _logits_of(answer, (len(images), subject.outputs), board.host)

        with tidied(board, [args["images"]]):  # each job has other images
            logits: Tensor = board.run_job("classify", args, name=record.path.name, progress=progress, read=read)
        return logits

    return predict


def _logits_of(answer: dict[str, Any], shape: tuple[int, int], host: str) -> Tensor:
    """Raises: AgentError."""
    try:
        logits = torch.tensor(answer["logits"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise wrong_answer(host, "classify", f"it has no rows of logits ({type(error).__name__})") from error
    if tuple(logits.shape) != shape or not logits.is_floating_point():
        raise wrong_answer(host, "classify", f"logits of shape {list(logits.shape)}, expected {list(shape)}")
    return logits


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
        predict = _predictor(board, record, subject, batch, Path(scratch), progress)
        jobs = replace(request, batch_size=_images_per_job(subject))
        return evaluate_opened(ModelUnderTest("engine", predict, subject), jobs, progress)
