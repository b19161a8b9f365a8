"""What comes back from an engine on a board, and what stays there; tests/engines/test_detections.py runs engines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgevit.board.answers import Classified, OutputsFile
from edgevit.engines.gate import unlabelled_sample
from edgevit.engines.outputs import all_outputs, rows_of, tidied, values_of
from edgevit.errors import AgentError, BoardError, ConnectionLostError, EngineError, Interrupted
from edgevit.network.output import Levels
from edgevit.progress import Silent
from edgevit.records.engine import EngineTensor


class Asked:
    """A board that keeps what it was asked."""

    def __init__(self, lost: bool = False) -> None:
        self.lost, self.calls = lost, list[tuple[str, object]]()

    def call(self, method: str, paths: list[str]) -> None:
        self.calls.append((method, paths))
        if self.lost:
            raise ConnectionLostError("gone")


@pytest.mark.parametrize(
    ("error", "stays"),
    [(None, False), (AgentError, False), (EngineError, False), (ConnectionLostError, True), (Interrupted, True)],
)
def test_files_stay_on_the_board_only_while_a_job_may_need_them(error: type[Exception] | None, stays: bool) -> None:
    board, paths = Asked(), set[str]()

    def work() -> None:
        with tidied(board, paths):  # type: ignore[arg-type]
            paths.update(["b", "a"])
            if error is not None:
                raise error("so")

    if error is None:
        work()
    else:
        with pytest.raises(error, match="so"):
            work()
    assert board.calls == ([] if stays else [("discard", ["a", "b"])])


def test_a_board_that_is_lost_while_it_is_tidied_costs_no_result() -> None:
    board = Asked(lost=True)
    with tidied(board, ["a"]):  # type: ignore[arg-type]
        pass
    assert board.calls and issubclass(ConnectionLostError, BoardError)


def test_rows_have_the_shape_that_was_asked_for_and_no_others_are_believed() -> None:
    rows = [[float(i + j) for j in range(6)] for i in range(3)]
    assert rows_of(Classified(0, rows), (3, 6), "orin").tolist() == rows
    with pytest.raises(AgentError, match=r"orin to 'classify' is wrong: outputs of shape \[3, 6\], expected \[50, 6\]"):
        rows_of(Classified(0, rows), (50, 6), "orin")
    for wrong in (None, [[1.0], [2.0, 3.0]], "text"):
        with pytest.raises(AgentError, match="it has no rows of outputs"):
            rows_of(Classified(0, wrong), (3, 6), "orin")


class Answering(Asked):
    """A board whose engine has put out these bytes."""

    host = "orin"

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content

    def run_job(self, method: str, args: dict[str, Any], *, read: Any, **_: object) -> Any:
        return read(OutputsFile("/outputs", hashlib.sha256(self.content).hexdigest()))

    def fetch(self, remote: str, path: Path, *_: object) -> None:
        path.write_bytes(self.content)


def test_several_outputs_are_read_by_their_types_and_put_in_order(tmp_path: Path) -> None:
    tensors = [EngineTensor("level_1", "float16", (-1, 2, 1, 1)), EngineTensor("level_0", "float32", (-1, 1, 3))]
    fields = np.dtype([("level_1", "f2", (2,)), ("level_0", "f4", (3,))])
    rows = np.array([((1, 2), (3, 4, 5)), ((6, 7), (8, 9, 10))], fields)
    sample = unlabelled_sample(torch.zeros(2, 3, 4, 4), Levels(), tmp_path / "images")
    asked: dict[str, Any] = {"order": ["level_0", "level_1"], "sample": sample, "name": "e", "progress": Silent()}
    board: Any = Answering(rows.tobytes())
    outputs = all_outputs(board, {}, tensors, **asked)
    assert outputs.tolist() == [[3, 4, 5, 1, 2], [8, 9, 10, 6, 7]] and values_of(tensors) == 5
    assert board.calls == [("discard", ["/outputs"])] and [file.name for file in tmp_path.iterdir()] == ["images"]
    alone = all_outputs(Answering(rows["level_1"].tobytes()), {}, tensors[:1], **{**asked, "order": ["level_1"]})  # type: ignore[arg-type]
    assert alone.shape == (2, 2, 1, 1)
    with pytest.raises(AgentError, match="is wrong: outputs of 31 bytes, expected 32"):
        all_outputs(Answering(rows.tobytes()[1:]), {}, tensors, **asked)  # type: ignore[arg-type]
