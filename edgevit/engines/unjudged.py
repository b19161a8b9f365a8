"""Networks with random weights, which are measured and not checked: put on the machine that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgevit.board.answers import Built, Refusal
from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.facts import TensorRT
from edgevit.engines.builder import NATIVE_OPSET, OLDEST_OPSET
from edgevit.progress import Progress
from edgevit.records.precisions import FP32
from edgevit.records.writing import file_sha256

OPSET = 20  # default of an export

_Write = Callable[[Path, str, int], None]  # write an ONNX file in a precision and an opset


@dataclass(frozen=True)
class Placed:
    """The file or engine of a network on the machine that runs it, or why there is no engine."""

    path: Path
    sha256: str
    fused: int | None = None  # number of blocks whose attention is one kernel; None: no engine, or unknown
    build_s: float | None = None
    refused: str | None = None


def built_from(tensorrt: TensorRT, precision: str) -> tuple[str, int]:
    """Precision and opset of the ONNX file that an engine of this precision is built from: see `EngineBuilder`."""
    if tensorrt.strongly_typed:
        return precision, OPSET
    return FP32.name, NATIVE_OPSET if tensorrt.native_layer_norm else OLDEST_OPSET


def place_unjudged(
    board: Board,
    file: Path,
    write: _Write,
    *,
    precision: str,
    progress: Progress,
    tensorrt: TensorRT | None = None,
    name: str = "",
    batches: Sequence[int] = (),
) -> Placed:
    """Write the ONNX file of a network unless it exists, and put it on the machine that runs it, or an engine of it.

    A file that was sent, or that an engine was built from, is removed.

    Args:
        tensorrt: the board's, which builds an engine called `name` for these batches; None: the file itself runs.

    Raises:
        BoardError: the board was lost, or the build failed there.
    """
    source, opset = (precision, OPSET) if tensorrt is None else built_from(tensorrt, precision)
    if not file.is_file():
        write(file, source, opset)
    digest = file_sha256(file)
    if tensorrt is None and board.host == THIS_MACHINE:
        return Placed(file, digest)
    remote = board.put(file, digest, progress)
    file.unlink()
    if tensorrt is None:
        return Placed(Path(remote), digest)
    args = {"onnx": remote, "precision": precision, "batches": list(batches), "timing_cache": True}
    built: Built | Refusal = board.run_job("build", args, name=name, progress=progress)
    board.call("discard", paths=[remote])
    if isinstance(built, Refusal):
        return Placed(Path(), "", build_s=built.seconds, refused=built.refused)
    return Placed(Path(built.engine), built.sha256, built.fused, built.seconds)
