"""Run an engine on images on its board, and bring its outputs here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgevit.board.answers import Classified, wrong_answer
from edgevit.board.connection import Board
from edgevit.engines.gate import Sample
from edgevit.engines.options import MIB
from edgevit.errors import BoardError, ConnectionLostError, EdgeVitError, Interrupted
from edgevit.exporting.session import joined
from edgevit.progress import Progress
from edgevit.records.engine import EngineTensor

_MOST_BYTES = 32 * MIB  # size of the images that a board holds at once


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
    """Send a sample with columns; return the arguments of its classification by an engine there, without the batch."""
    assert sample.columns is not None
    return {
        "engine": engine,
        "images": board.put(sample.path, sample.sha256, progress),
        "count": sample.count,
        "shape": list(sample.shape),
        "dtype": "float16" if sample.has_pictures else "int64",
        "columns": list(sample.columns),
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


@contextmanager
def opened_engine(
    board: Board,
    engine: str,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    order: Sequence[str],
    batch: int,
    progress: Progress,
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a function that runs an engine on its board: images [B, ...] to outputs [B, ...], several as by `joined`.

    The images are rounded to float16, as in the gate; neither they nor the outputs are kept on the board's disk.

    Args:
        engine: its file on the board.
        inputs, outputs: those of the engine, in its order.
        order: the names of the outputs, in the order of the result.
    """
    fields = np.dtype([(t.name, np.dtype(t.dtype), (math.prod(t.shape[1:]),)) for t in outputs])
    shapes = {tensor.name: tensor.shape[1:] for tensor in outputs}
    images_in = inputs[0]
    args = {"engine": engine, "shape": list(images_in.shape[1:]), "dtype": images_in.dtype, "batch": batch}
    image_bytes = np.dtype(images_in.dtype).itemsize * math.prod(images_in.shape[1:])
    at_once = batch * max(_MOST_BYTES // (batch * image_bytes), 1)
    with board.pipe(args, progress) as exchange:

        def run(images: Tensor) -> Tensor:
            rounded = (images.half() if images.is_floating_point() else images).cpu().numpy()
            values = np.empty(len(images), fields)
            for first in range(0, len(images), at_once):
                part = slice(first, first + at_once)
                content = np.ascontiguousarray(rounded[part], images_in.dtype)
                exchange({"count": len(content)}, content.data.cast("B"), values[part].view(np.uint8).data)
            return joined([torch.from_numpy(values[out].astype(np.float32)).reshape(-1, *shapes[out]) for out in order])

        yield run
