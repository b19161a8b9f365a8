"""An engine of a network of texts, with the stand-in for TensorRT: the gate classifies texts by their ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_bert import TOKENS, learnt_release, write_texts

import edgevit
from edgevit.board.connection import open_board
from edgevit.engines.build import build_engine
from edgevit.engines.request import ExportRequest
from edgevit.engines.run import evaluate, export
from edgevit.progress import Silent
from edgevit.request import request_of

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("examined_once")


@pytest.mark.parametrize("release", ["10.3.0", "8.6.1"])
@pytest.mark.slow
def test_an_engine_takes_ids_and_is_judged_on_the_texts(
    tmp_path: Path, play: Callable[..., None], release: str
) -> None:
    base, data = learnt_release(tmp_path / "base"), write_texts(tmp_path / "data", 40)
    edgevit.derive(str(base), data=data, rate=0.3, steps=0, validation_fraction=0.3, device="cpu", cache=False,
                   out=tmp_path / "slim")  # fmt: skip
    export(tmp_path / "slim", accuracy=False)
    play(release)
    with open_board(None) as board:
        request = request_of(ExportRequest, {"accuracy": False, "model": tmp_path / "slim", "trt": True}, "build")
        record = build_engine(request, board, Silent())
    assert [(tensor.name, list(tensor.shape[1:])) for tensor in record.inputs] == [("ids", [TOKENS])]
    assert record.accuracy is not None and record.accuracy.agreement == 1
    evaluation = evaluate(record.path, data=data)
    assert evaluation.top1 is not None and evaluation.top1 >= 0.8
