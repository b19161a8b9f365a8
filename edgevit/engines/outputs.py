"""Run an engine on images on its board, and bring its outputs here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgevit.board.answers import Classified, OutputsFile, wrong_answer
from edgevit.board.connection import Board
from edgevit.engines.gate import Sample
from edgevit.errors import BoardError, ConnectionLostError, EdgeVitError, Interrupted
from edgevit.exporting.session import joined
from edgevit.progress import Progress
from edgevit.records.engine import EngineTensor


def drop(board: Board, paths: Iterable[str]) -> None:
    """Remove files from the board, whose disk is small; ignore a lost connection."""
    with suppress(BoardError):
        board.call("discard", paths=sorted(paths))


@contextmanager
def tidied(board: Board, paths: Collection[str]) -> Iterator[None]:
    """Remove files from the board when the block ends; `paths` may grow in it.

    After Ctrl-C or a lost connection they stay, because the job on the board continues and needs them.
    """
    try:
        yield
    except (Interrupted, ConnectionLostError):
        raise
    except EdgeVitError:
        drop(board, paths)
        raise
    drop(board, paths)


def classification(board: Board, engine: str, sample: Sample, progress: Progress) -> dict[str, Any]:
    """Send the sample; return the arguments of its classification by an engine on the board, without the batch."""
    return {
        "engine": engine,
        "images": board.put(sample.path, sample.sha256, progress),
        "count": sample.count,
        "shape": list(sample.shape),
        "dtype": "int64" if len(sample.shape) == 1 else "float16",
        "columns": sample.columns and list(sample.columns),
    }


def rows_of(answer: Classified, shape: Sequence[int], host: str) -> Tensor:
    """The outputs [images, columns] in the answer of a classification.

    Raises:
        AgentError: the answer has another shape.
    """
    try:
        rows = torch.tensor(answer.rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong_answer(host, "classify", f"it has no rows of outputs ({type(error).__name__})") from error
    if list(rows.shape) != list(shape) or not rows.is_floating_point():
        raise wrong_answer(host, "classify", f"outputs of shape {list(rows.shape)}, expected {list(shape)}")
    return rows


def values_of(tensors: Iterable[EngineTensor]) -> int:
    """The number of values of all outputs for one image."""
    return sum(math.prod(tensor.shape[1:]) for tensor in tensors)


def all_outputs(
    board: Board,
    args: Mapping[str, Any],
    tensors: Sequence[EngineTensor],
    order: Sequence[str],
    sample: Sample,
    *,
    name: str,
    progress: Progress,
) -> Tensor:
    """The outputs [images, ...] of an engine for a sample on the board; several as by `joined`.

    Args:
        args: of the classification, with the batch.
        tensors: the engine's outputs, in its order.
        order: their names, in the order of the result.

    Raises:
        BoardError: the engine failed, or the file of its outputs is not what was announced.
    """
    path = sample.path.with_name(f"{sample.path.name}.outputs")
    fields = [(t.name, np.dtype(t.dtype), (math.prod(t.shape[1:]),)) for t in tensors]

    def read(answer: OutputsFile) -> Any:
        with tidied(board, [answer.file]):
            board.fetch(answer.file, path, answer.sha256, progress)
        values = np.fromfile(path, np.uint8)
        path.unlink()
        if values.nbytes != (expected := sample.count * np.dtype(fields).itemsize):
            raise wrong_answer(board.host, "classify", f"outputs of {values.nbytes} bytes, expected {expected}")
        return values.view(np.dtype(fields))

    values = board.run_job("classify", dict(args), name=name, progress=progress, read=read)
    shapes = {tensor.name: tensor.shape[1:] for tensor in tensors}
    return joined([torch.from_numpy(values[out].astype(np.float32)).reshape(-1, *shapes[out]) for out in order])
