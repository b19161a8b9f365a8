"""Engines of networks with random weights, which are built only to measure their latency and are not checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgevit.board.connection import Board
from edgevit.board.facts import TensorRT
from edgevit.engines.builder import NATIVE_OPSET, OLDEST_OPSET
from edgevit.progress import Progress
from edgevit.records.precisions import FP32
from edgevit.records.writing import file_sha256

OPSET = 20  # default of an export

Write = Callable[[str, int], Path]  # write the ONNX file of a precision and an opset


def built_from(tensorrt: TensorRT, precision: str) -> tuple[str, int]:
    """Precision and opset of the ONNX file that an engine of this precision is built from: see `EngineBuilder`."""
    if tensorrt.strongly_typed:
        return precision, OPSET
    return FP32.name, NATIVE_OPSET if tensorrt.native_layer_norm else OLDEST_OPSET


def build_unjudged(
    board: Board,
    tensorrt: TensorRT,
    write: Write,
    *,
    name: str,
    precision: str,
    batches: Sequence[int],
    progress: Progress,
) -> dict[str, Any]:
    """Write a network, build its engine on the board, and remove the ONNX file on both sides.

    Returns the answer of the agent's `build`; `refused` is the reason why there is no engine, or None.

    Raises:
        BoardError: the board was lost, or the build failed there.
    """
    path = write(*built_from(tensorrt, precision))
    onnx = board.put(path, file_sha256(path), progress)
    path.unlink()
    args = {"onnx": onnx, "precision": precision, "batches": list(batches), "timing_cache": True}
    built: dict[str, Any] = board.run_job("build", args, name=name, progress=progress)
    board.call("discard", paths=[onnx])
    return built
