"""The folder of an imported file, as what files are written of."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from foreign_onnx import PREPARED, write_vit
from onnx import numpy_helper

from edgevit.errors import CheckpointError, ExportError, OptionError
from edgevit.exporting.imported.importing import imported
from edgevit.exporting.imported.source import ImportedSource, open_imported
from edgevit.exporting.precision import needs_fp32
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import OnnxModel
from edgevit.exporting.source import Form
from edgevit.records.kinds import plain

IMAGE = torch.zeros(1, 3, 32, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a file whose normalisations overflow; to be looked at and not changed."""
    file = write_vit(tmp_path_factory.mktemp("imported") / "m.onnx", stream=300)
    return imported(FilesRequest(model=file, out=file.with_suffix(""), preprocessing=PREPARED)).model


def test_it_offers_what_a_model_folder_offers(folder: Path) -> None:
    source = open_imported(folder)
    assert source.blocks == ("blocks.0", "blocks.1") and source.fusable == source.has_attention == (True, True)
    assert source.predictor("cpu")(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert source.operators is not None and {"Cast", "Pow", "Erf"} <= source.operators
    with pytest.raises(OptionError, match="--pad-heads"):
        source.padded()


def test_the_range_is_that_of_every_node(folder: Path) -> None:
    source = open_imported(folder)
    seen = source.check_range(torch.randn(3, 3, 32, 32))
    assert seen.activations_where.endswith("/Pow") and seen.activations_largest > 65504
    assert needs_fp32(seen, source.norms, source.blocks) == source.norms
    assert all(name.partition("/")[0] in source.norms for name in seen.overflowing)


def test_a_weight_that_overflows_is_told_without_a_derivation_that_never_was(folder: Path, tmp_path: Path) -> None:
    source = open_imported(folder)
    model = onnx.load(source.path)
    first = next(w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT)
    masked = numpy_helper.to_array(first).copy()
    masked.flat[0] = np.finfo(np.float32).min
    first.CopyFrom(numpy_helper.from_array(masked, first.name))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ExportError, match=r"3\.403e\+38 seen, 65504 is the largest; leave fp16 out with --no-fp16$"):
        replace(source, path=tmp_path / "m.onnx").check_range(torch.zeros(1, 3, 32, 32))


def test_infinities_of_a_mask_are_meant(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", masked=True)
    source = open_imported(imported(FilesRequest(model=file, preprocessing=PREPARED)).model)
    images = torch.randn(3, 3, 32, 32)
    seen = source.check_range(images)
    assert seen.activations_largest < 1000 and seen.weights_largest < 100 and not seen.overflowing
    source.write(tmp_path / "half.onnx", Form("fp16", "dynamic", 16), {"precision": "fp16"})
    torch.testing.assert_close(
        OnnxModel(tmp_path / "half.onnx").predict(images), source.predictor("cpu")(images), rtol=0.02, atol=0.02
    )


def changed(source: ImportedSource, path: Path, constant: list[float], *nodes: onnx.NodeProto) -> ImportedSource:
    """With a constant c, and nodes more."""
    model = onnx.load(source.path)
    model.graph.initializer.append(numpy_helper.from_array(np.array(constant, np.float32), "c"))
    model.graph.node.extend(nodes)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return replace(source, path=path)


def test_an_infinity_that_nobody_meant_overflows_and_is_told_as_a_number(folder: Path, tmp_path: Path) -> None:
    square = onnx.helper.make_node("Mul", ["c", "c"], ["large"], name="blocks.0.attn/Mul_9")
    exponential = onnx.helper.make_node("Exp", ["large"], ["infinite"], name="blocks.0.attn/Exp")
    seen = changed(open_imported(folder), tmp_path / "m.onnx", [100.0], square, exponential).check_range(IMAGE)
    assert seen.activations_where == "blocks.0.attn/Exp" in seen.overflowing
    assert json.loads(json.dumps(plain(seen), allow_nan=False))["activations_largest"] == pytest.approx(3.403e38, 1e-3)


def test_every_output_of_a_node_counts(folder: Path, tmp_path: Path) -> None:
    square = onnx.helper.make_node("Mul", ["c", "c"], ["both"], name="blocks.1.attn/Mul_9")
    split = onnx.helper.make_node("Split", ["both"], ["large", "small"], name="blocks.1.attn/Split", axis=0)
    seen = changed(open_imported(folder), tmp_path / "m.onnx", [6e4, 1.0], square, split).check_range(IMAGE)
    assert {"blocks.1.attn/Mul_9", "blocks.1.attn/Split"} <= {*seen.overflowing}


def test_modules_stay_in_fp32_as_asked(folder: Path, tmp_path: Path) -> None:
    source = open_imported(folder)
    kept = ("blocks.0", "blocks.1.norm1")
    source.write(tmp_path / "m.onnx", Form("fp16", "dynamic", 16, kept), {"precision": "fp16"})
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "m.onnx")).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    inside = {n.name: types[n.output[0]] for n in graph.node if n.name.startswith(("blocks.0.", "blocks.0/"))}
    assert {name for name, kind in inside.items() if kind == onnx.TensorProto.FLOAT16} == {"blocks.0/Cast_1"}
    assert types[next(n.output[0] for n in graph.node if n.name == "blocks.1.norm1/Pow")] == onnx.TensorProto.FLOAT
    assert types[next(n.output[0] for n in graph.node if n.name == "blocks.1.norm2/Pow")] == onnx.TensorProto.FLOAT16


def test_another_operator_set_is_not_made_up(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"has operator set 16, and the board needs 20; export the original"):
        open_imported(folder).write(tmp_path / "m.onnx", Form("fp32", "dynamic", 20), {})


def test_a_file_that_was_altered_or_is_missing_is_told(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    (copied / "model.onnx").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="was altered"):
        open_imported(copied)
    (copied / "model.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx is missing"):
        open_imported(copied)
