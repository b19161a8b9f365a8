"""A file in bfloat16 is imported in fp32, and is the same function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from foreign_onnx import write_vit
from onnx import TensorProto, helper, numpy_helper

from edgevit.exporting.imported.widening import widen


def test_weights_stay_to_the_last_bit_and_every_type_is_fp32(tmp_path: Path) -> None:
    model = onnx.load(write_vit(tmp_path / "m.onnx", depth=1, kind=TensorProto.BFLOAT16))
    model.graph.node.append(helper.make_node("Cast", ["prob"], ["half"], to=TensorProto.BFLOAT16))
    value = helper.make_tensor("third", TensorProto.BFLOAT16, [1], [1 / 3])
    model.graph.node.append(helper.make_node("Constant", [], ["third"], value=value))
    before = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    assert widen(model) and not widen(model)
    for weight in model.graph.initializer:
        assert np.array_equal(numpy_helper.to_array(weight), before[weight.name])
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 1]
    cast, constant = model.graph.node[-2:]
    assert cast.attribute[0].i == TensorProto.FLOAT and constant.attribute[0].t.data_type == TensorProto.FLOAT
