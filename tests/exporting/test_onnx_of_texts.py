"""A network of texts is exported with ids as its input, and padding found in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from small_bert import TOKENS, small_bert, some_ids, write_release

from edgevit.errors import CheckpointError, ExportError, OptionError
from edgevit.exporting.evaluate import open_onnx
from edgevit.exporting.onnx import export_files
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import OnnxModel
from edgevit.network.folder import load, save
from edgevit.network.opening import open_network
from edgevit.serving.package import package
from edgevit.train.mixing import Mixing
from edgevit.train.settings import Training

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    save(open_network(write_release(root / "base", small_bert())), root / "model")
    export_files(FilesRequest(model=root / "model", accuracy=False))
    return root / "model"


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 1e-2)])
@torch.no_grad()
def test_a_file_takes_int64_ids_and_computes_what_torch_does(folder: Path, precision: str, tolerance: float) -> None:
    file = OnnxModel(folder / "export" / f"model.{precision}.onnx")
    assert (file.input.name, file.input.type, file.input.shape[1:]) == ("ids", "tensor(int64)", [TOKENS])
    expected = load(folder)(some_ids())
    torch.testing.assert_close(file.predict(some_ids()), expected, rtol=tolerance, atol=tolerance)


def test_padding_is_found_once_and_added_to_every_attention(folder: Path) -> None:
    graph = onnx.load(folder / "export" / "model.fp32.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Equal") == kinds.count("Where") == 1 and kinds.count("Softmax") == 2 and "Cast" not in kinds


def test_the_file_says_how_its_texts_are_prepared(folder: Path, tmp_path: Path) -> None:
    file = folder / "export" / "model.fp32.onnx"
    subject = open_onnx(file, "cpu").subject
    assert list(subject.preprocessing["input_size"]) == [TOKENS] and "tokenizer" in subject.preprocessing
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(np.int32))
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CheckpointError):
        OnnxModel(tmp_path / "other.onnx")


def test_what_is_for_images_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="INT8 is calibrated on images"):
        export_files(FilesRequest(model=folder, precision="int8"))
    with pytest.raises(ExportError, match="reads texts, and applications read images"):
        package(folder, triton=True, out=tmp_path / "triton")
    with pytest.raises(OptionError, match="mixes images"):
        Mixing(load(folder), Training(steps=1), 1, 0)
