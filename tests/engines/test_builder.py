"""What is said of an engine's batches and of the board it was made on; tests/engines/test_build.py makes engines."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from some_engines import facts

from edgevit.engines.builder import batches_of, board_in_short, mode_name, outputs_of, tidied
from edgevit.engines.options import EngineOptions
from edgevit.errors import AgentError, BoardError, ConnectionLostError, EngineError, Interrupted

CUDA = {"runtime": "12.6", "device": "Orin", "sms": 8, "capability": "8.7"}


@pytest.mark.parametrize("batch", ["dynamic", 4])
def test_batches_may_be_a_list(batch: Any) -> None:
    exported: Any = SimpleNamespace(batch=batch)
    given: Any = [4, 4, 4]
    assert batches_of(exported, EngineOptions(batches=given)) == (4, 4, 4)


def test_a_board_in_short_is_what_decides_how_fast_an_engine_is() -> None:
    found = facts(power_mode={"id": 0, "name": "MAXN"}, jetpack="6.2", cuda=CUDA)
    assert asdict(board_in_short(found)) == {
        "model": "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super", "part": "p3767-0000", "super": True,
        "jetpack": "6.2", "l4t": "36.4.3", "tensorrt": "10.3.0", "cuda": "12.6", "device": "Orin", "sms": 8,
        "capability": "8.7", "power_mode": "MAXN",
    }  # fmt: skip
    assert mode_name(facts(power_mode=None)) is None


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


def test_outputs_have_the_shape_of_the_engines_own_and_no_others_are_believed() -> None:
    rows = [[float(i + j) for j in range(6)] for i in range(3)]
    assert outputs_of({"rows": rows}, (3, 2, 1, 3), "orin").tolist()[1] == [[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]
    with pytest.raises(AgentError, match=r"orin to 'classify' is wrong: outputs of shape \[3, 6\], expected \[50, 6\]"):
        outputs_of({"rows": rows}, (50, 6), "orin")
    for wrong in (None, [[1.0], [2.0, 3.0]], "text"):
        with pytest.raises(AgentError, match="it has no rows of outputs"):
            outputs_of({"rows": wrong}, (3, 6), "orin")
