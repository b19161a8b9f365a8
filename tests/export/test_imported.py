"""The folder of an imported file, as what files are written of."""

from __future__ import annotations

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
from edgevit.export.imported import open_imported
from edgevit.export.importing import imported
from edgevit.export.precision import needs_fp32
from edgevit.export.request import FilesRequest
from edgevit.export.source import Form


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
    with pytest.raises(ExportError, match=r"has operator set 16, and 20 is the newest here; export it with that"):
        open_imported(folder).write(tmp_path / "m.onnx", Form("fp32", "dynamic", 20), {})


def test_a_file_that_was_altered_or_is_missing_is_told(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    (copied / "model.onnx").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="was altered"):
        open_imported(copied)
    (copied / "model.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx is missing"):
        open_imported(copied)
