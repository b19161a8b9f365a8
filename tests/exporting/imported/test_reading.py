"""A file from which no engine could come is one line: what it is, and what to give instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from foreign_onnx import write_vit
from onnx import TensorProto, helper

from edgevit.errors import CheckpointError, EdgeVitError, ExportError, OptionError
from edgevit.exporting.imported.reading import check_nodes, read_file, read_interface, resolve_batch, resolve_size


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vit(tmp_path_factory.mktemp("reading") / "vit.onnx", depth=1)


def refusal(file: Path) -> EdgeVitError:
    with pytest.raises(EdgeVitError) as error:
        model = read_file(file)
        check_nodes(file, model)
        read_interface(file, model.graph)
    assert "\n" not in str(error.value) and str(file) in str(error.value)
    return error.value


def changed(vit: Path, folder: Path, change: Any) -> Path:
    model = onnx.load(vit)
    change(model)
    file = folder / "changed.onnx"
    onnx.save(model, file)
    return file


def test_a_vision_transformer_is_read_with_what_it_leaves_open(vit: Path) -> None:
    model = read_file(vit)
    found = read_interface(vit, model.graph)
    assert check_nodes(vit, model) == 16
    assert (found.name, found.batch, found.sizes) == ("pixel_values", "dynamic", (3, 32, 32))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello, this is no protobuf", "is not an ONNX file, or is damaged"),
        (b"", "has no nodes, so it is not a model"),
        (b"PK\x03\x04 a checkpoint of torch", "contains weights without a graph"),
        (b'\x10\0\0\0\0\0\0\0{"x": {}}', "contains weights without a graph"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer, not a model; run `git lfs pull`"),
    ],
    ids=["text", "empty", "torch", "safetensors", "pointer"],
)
def test_what_is_no_onnx_file_is_told_apart(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    assert said in str(refusal(file))


def test_a_file_that_was_cut_off_is_damaged(vit: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.onnx"
    file.write_bytes(vit.read_bytes()[:-100])
    assert isinstance(refusal(file), CheckpointError)


def test_a_path_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert "is not a complete ONNX file" in str(refusal(tmp_path))


def test_weights_beside_the_file_are_read_and_missed(vit: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(onnx.load(vit), file, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert len(read_file(file).graph.initializer) == len(onnx.load(vit).graph.initializer)
    (tmp_path / "model.onnx.data").unlink()
    told = str(refusal(file))
    assert "model.onnx.data" in told and "with its external files" in told


def test_operators_that_no_tensorrt_knows_are_named(vit: Path, tmp_path: Path) -> None:
    def microsoft(model: Any) -> None:
        model.graph.node[-1].domain = "com.microsoft"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    assert "has com.microsoft.Add, which TensorRT does not support" in str(refusal(changed(vit, tmp_path, microsoft)))

    def newer(model: Any) -> None:
        model.opset_import[0].version = 23

    assert "has operator set 23, and JetPack's parsers read up to 20" in str(
        refusal(changed(write_vit(tmp_path / "v.onnx", depth=0, decomposed=False, opset=17), tmp_path, newer))
    )


@pytest.mark.parametrize("where", ["input", "output"])
def test_one_input_and_one_output_is_what_a_classifier_has(vit: Path, tmp_path: Path, where: str) -> None:
    more = helper.make_tensor_value_info("t0" if where == "output" else "mask", TensorProto.FLOAT, None)
    file = changed(vit, tmp_path, lambda model: getattr(model.graph, where).append(more))
    model = onnx.load(file)
    with pytest.raises(CheckpointError, match=rf"has 2 {where}s \(\w+, \w+\), and one is expected"):
        read_interface(file, model.graph)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": TensorProto.DOUBLE}, "takes images of double; give the model in fp32 or fp16"),
    ],
)
def test_other_images_than_fp32_are_refused(tmp_path: Path, options: Any, said: str) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=0, **options)
    with pytest.raises(CheckpointError, match=said):
        read_interface(file, onnx.load(file).graph)


def test_a_file_of_integer_operators_is_refused(vit: Path, tmp_path: Path) -> None:
    def quantise(model: Any) -> None:
        model.graph.node[-1].op_type = "MatMulInteger"

    file = changed(vit, tmp_path, quantise)
    with pytest.raises(ExportError, match=r"is quantised by MatMulInteger, .* as it is with `edgevit bench"):
        check_nodes(file, onnx.load(file))


def test_sizes_that_are_open_must_be_given_and_the_others_may_not_be_changed(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=0, side="side")
    found = read_interface(file, onnx.load(file).graph)
    assert resolve_size(file, found, None) is None
    assert resolve_size(file, found, (3, 32, 32)) == [3, 32, 32]
    with pytest.raises(OptionError, match=r"takes images of 3x\?x\?, and --input-size is 1x32x32"):
        resolve_size(file, found, (1, 32, 32))


def test_a_size_of_minus_one_is_open(vit: Path, tmp_path: Path) -> None:
    def free(model: onnx.ModelProto) -> None:
        for dim in (model.graph.input[0].type.tensor_type.shape.dim[i] for i in (0, 3)):
            dim.dim_value = -1

    file = changed(vit, tmp_path, free)
    found = read_interface(file, onnx.load(file).graph)
    assert (found.batch, found.sizes) == ("dynamic", (3, 32, None))


def test_a_fixed_batch_stays() -> None:
    assert resolve_batch(Path("m.onnx"), 4, "dynamic") == resolve_batch(Path("m.onnx"), 4, 4) == 4
    assert resolve_batch(Path("m.onnx"), "dynamic", 2) == 2
    with pytest.raises(OptionError, match="has a fixed batch of 4, and --batch 1 was asked for"):
        resolve_batch(Path("m.onnx"), 4, 1)
