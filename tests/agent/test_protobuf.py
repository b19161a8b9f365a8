"""The types of a file's inputs, read without the onnx package."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from standin_board import write_model

from edgevit.agent.protobuf import graph_nodes, input_types, metadata
from edgevit.agent.runners import RunnerError


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "DOUBLE"])
def test_input_types_are_read_as_the_onnx_package_reads_them(dtype: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", dtype=getattr(TensorProto, dtype))
    assert input_types(str(path)) == {"images": {"FLOAT": "float32", "FLOAT16": "float16", "DOUBLE": "float64"}[dtype]}


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content in (b"", b"no protobuf at all", b"\xff" * 20, onnx.ModelProto(ir_version=8).SerializeToString()):
        path.write_bytes(content)
        with pytest.raises(RunnerError, match="is no ONNX file"):
            input_types(str(path))
    with pytest.raises(RunnerError, match=r"cannot read .*No such file"):
        input_types(str(tmp_path / "none.onnx"))


@given(content=st.binary(max_size=200), flipped=st.integers(0, 400), cut=st.integers(0, 400))
def test_no_file_crashes_the_reader(
    content: bytes, flipped: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path, model = folder / "fuzzed.onnx", folder / "whole.onnx"
    if not model.exists():
        write_model(model)
    whole = bytearray(model.read_bytes())
    whole[flipped] ^= 0x55
    for candidate in (content, bytes(whole), bytes(whole[: len(whole) - cut])):
        path.write_bytes(candidate)
        try:
            assert input_types(str(path))
        except RunnerError as error:
            assert "\n" not in str(error)


def test_nodes_are_read_as_the_onnx_package_reads_them(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx")
    expected = [(n.name, n.op_type, tuple(n.input), tuple(n.output)) for n in onnx.load(path).graph.node]
    assert [(n.name, n.kind, n.inputs, n.outputs) for n in graph_nodes(str(path))] == expected


def test_metadata_are_read_as_the_onnx_package_reads_them(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx")
    assert metadata(str(path)) == {}
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"preprocessing": '{"mean": [0.5]}', "leer": "", "ä": "ö"})
    onnx.save(model, path)
    assert metadata(str(path)) == {"preprocessing": '{"mean": [0.5]}', "leer": "", "ä": "ö"}
