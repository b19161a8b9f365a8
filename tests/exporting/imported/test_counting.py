"""What an ONNX file costs, counted from its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_cnn import write_cnn

from edgevit.exporting.imported.counting import count_macs, count_params
from edgevit.exporting.imported.importing import import_file
from edgevit.exporting.request import FilesRequest
from edgevit.progress import Silent
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder


def test_a_convolutional_network_costs_what_its_layers_cost(tmp_path: Path) -> None:
    from small_base import PREPROCESSING

    file, folder = write_cnn(tmp_path / "cnn.onnx", ["3", "5", "8"], steps=0), ModelFolder(tmp_path)
    request = FilesRequest(model=file, preprocessing=PREPROCESSING)
    document = import_file(request, folder, Silent())
    assert document.macs == 8 * 8 * 8 * 27 + 16 * 4 * 4 * 72 + 256 * 3
    assert document.params == 8 * 27 + 8 + 16 * 72 + 16 + 256 * 3 + 3


def test_an_exported_transformer_costs_what_edgevit_counts(exported: tuple[Path, ExportRecord]) -> None:
    folder, _ = exported
    spec, file = ModelFolder(folder).document(), folder / "export" / "model.fp32.onnx"
    images = np.zeros((2, *spec.preprocessing["input_size"]), np.float32)
    assert count_macs(file, images) == pytest.approx(spec.macs, rel=0.02), "which counts normalisations, too"
    assert count_params(file) == pytest.approx(spec.params, rel=0.02)


@pytest.mark.parametrize(
    ("operator", "attributes", "weight", "macs"),
    [
        ("ConvTranspose", {"strides": [2, 2]}, (3, 5, 2, 2), 3 * 4 * 4 * 5 * 2 * 2),
        ("Conv", {"group": 3}, (6, 1, 2, 2), 6 * 3 * 3 * 4),
        ("MatMul", {}, (4, 7), 3 * 4 * 7 * 4),
        ("Einsum", {"equation": "bchw,wk->bchk"}, (4, 7), 3 * 4 * 7 * 4),
        ("Einsum", {"equation": "...w,wk->...k"}, (4, 7), 3 * 4 * 7 * 4),
    ],
)
def test_each_product_is_counted_by_its_shapes(
    tmp_path: Path, operator: str, attributes: dict[str, Any], weight: tuple[int, ...], macs: int
) -> None:
    value = numpy_helper.from_array(np.ones(weight, np.float32), "w")
    nodes = [helper.make_node(operator, ["images", "w"], ["t"], **attributes), helper.make_node("Relu", ["t"], ["out"])]
    kinds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("images", ["n", 3, 4, 4]), ("out", None))
    ]
    graph = helper.make_graph(nodes, "g", kinds[:1], kinds[1:], [value])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    assert count_macs(tmp_path / "m.onnx", np.zeros((2, 3, 4, 4), np.float32)) == macs
    assert count_params(tmp_path / "m.onnx") == np.prod(weight)
