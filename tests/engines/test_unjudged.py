"""Engines of random weights are built from the file that the board's release needs, which stays nowhere."""

import pytest
from small_models import write_derived

from edgevit.board.connection import open_board
from edgevit.board.facts import TensorRT
from edgevit.engines.unjudged import Placed, built_from, place_unjudged
from edgevit.exporting.graph import write_onnx
from edgevit.network.folder import load
from edgevit.progress import Silent
from edgevit.records.writing import file_sha256


@pytest.mark.parametrize(
    ("strongly_typed", "native_layer_norm", "file"),
    [(True, True, ("fp16", 20)), (False, True, ("fp32", 17)), (False, False, ("fp32", 16))],
)
def test_releases_that_choose_types_themselves_get_an_older_fp32_file(strongly_typed, native_layer_norm, file):
    found = TensorRT("10.3.0", strongly_typed=strongly_typed, native_layer_norm=native_layer_norm)
    assert built_from(found, "fp16") == file


@pytest.mark.slow
def test_an_engine_is_built_and_the_file_it_came_from_is_gone_where_a_file_alone_stays(play, tmp_path):
    network, path, asked = load(write_derived(tmp_path / "m", 16, 16, depth=1)), tmp_path / "m.onnx", []

    def write(file, precision, opset):
        asked.append((precision, opset))
        write_onnx(network, file, input_size=(3, 32, 32), batch="dynamic", opset=opset, metadata={})

    play("8.6.1")
    with open_board(None) as board:
        found = TensorRT("8.6.1", strongly_typed=False, native_layer_norm=True)
        how = {"name": "m", "precision": "fp16", "batches": (1, 1, 2), "progress": Silent()}
        placed = place_unjudged(board, path, write, tensorrt=found, **how)
        assert asked == [("fp32", 17)] and placed.refused is None and placed.path.suffix == ".engine"
        assert not path.exists() and not list((tmp_path / "cache").rglob("*.onnx"))
        for _ in range(2):
            placed = place_unjudged(board, path, write, precision="fp32", progress=Silent())
    assert placed == Placed(path, file_sha256(path)) and asked[1:] == [("fp32", 20)], "it is written once"
