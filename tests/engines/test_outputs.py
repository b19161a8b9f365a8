"""What comes back from an engine on a board, and what stays there; tests/engines/test_detections.py runs engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from board_fixtures import Server
from places import STANDINS
from standin_board import CLASSES, build, model_for, play

from edgevit.board.answers import Classified
from edgevit.board.connection import open_board
from edgevit.engines import outputs as module
from edgevit.engines.outputs import opened_engine, rows_of, tidied, values_of
from edgevit.errors import AgentError, BoardError, ConnectionLostError, EngineError, Interrupted
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


class Open(Asked):
    """A board with an engine that puts out these rows, one for each image."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.rows, self.images = iter(rows), list[bytes]()

    @contextmanager
    def pipe(self, args: object, progress: object) -> Iterator[Any]:
        self.calls.append(("pipe", args))

        def exchange(request: dict[str, int], content: memoryview, answers: memoryview) -> None:
            self.images.append(bytes(content))
            answers[:] = b"".join(next(self.rows).tobytes() for _ in range(request["count"]))

        yield exchange


def test_several_outputs_are_read_by_their_types_and_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [EngineTensor("level_1", "float16", (-1, 2, 1, 1)), EngineTensor("level_0", "float32", (-1, 1, 3))]
    fields = np.dtype([("level_1", "f2", (2,)), ("level_0", "f4", (3,))])
    rows = np.array([((1, 2), (3, 4, 5)), ((6, 7), (8, 9, 10)), ((0, 0), (0, 0, 1))], fields)
    images_in, images = EngineTensor("images", "float32", (-1, 3, 4, 4)), torch.randn(3, 3, 4, 4)
    monkeypatch.setattr(module, "_MOST_BYTES", 2 * 3 * 4 * 4 * 4)
    board: Any = Open(rows)
    order = ["level_0", "level_1"]
    with opened_engine(board, "/e", [images_in], tensors, order, 2, Silent()) as run:
        outputs = run(images)
    assert outputs.tolist() == [[3, 4, 5, 1, 2], [8, 9, 10, 6, 7], [0, 0, 1, 0, 0]] and values_of(tensors) == 5
    assert board.calls == [("pipe", {"engine": "/e", "shape": [3, 4, 4], "dtype": "float32", "batch": 2})]
    assert board.images == [part.half().float().numpy().tobytes() for part in (images[:2], images[2:])]
    alone: Any = Open(rows["level_1"])
    with opened_engine(alone, "/e", [images_in], tensors[:1], order[1:], 2, Silent()) as run:
        assert run(images).shape == (3, 2, 1, 1)


def test_an_engine_is_opened_again_where_the_connection_breaks(
    sshd: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    built = build(model_for("10.3.0", tmp_path))
    inputs, outputs = ([EngineTensor(**tensor) for tensor in built[name]] for name in ("inputs", "outputs"))
    server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0", EDGEVIT_BOARD_ROOT=tmp_path)
    images = torch.randn(5, 4, 8, 8)
    with (
        open_board(server.host, ssh_config=server.config, retry_seconds=10) as board,
        opened_engine(board, built["engine"], inputs, outputs, ["logits"], 4, Silent()) as run,
    ):
        before = run(images)
        assert torch.equal(run(images[3:]), before[3:]) and server.log().count("Accepted publickey") == 1
        server.cut()
        assert torch.equal(run(images), before) and server.log().count("Accepted publickey") == 2
    assert before.shape == (5, CLASSES) and before.std(0).min() > 0
