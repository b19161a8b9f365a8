"""fp16 everywhere but in the islands: no cast between two nodes of these, and no weight of theirs rounded."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgevit.errors import ExportError
from edgevit.exporting.halving import halve

SHARED = np.float32(1.0001)  # not in fp16


def small(*nodes: onnx.NodeProto, **more: object) -> ir.Model:
    """Nodes from x to y, with a weight w that several may use."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array([SHARED] * 4), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def node(operator: str, inputs: str, output: str, module: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{module}/{operator}", **attributes)


def run(model: ir.Model, x: list[float]) -> np.ndarray:
    """With the reference evaluator, which computes in fp16 where the file does."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(over="ignore"):
        (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": np.array([x], np.float16)})
    return np.asarray(y)


SQUARED = (
    node("Mul", "x w", "a", "norm"),
    node("Mul", "a a", "b", "norm"),
    node("Sqrt", "b", "c", "norm"),
    node("Mul", "c w", "y", "head"),
)


def halved(*islands: str, nodes: tuple[onnx.NodeProto, ...] = SQUARED) -> ir.Model:
    model = small(*nodes)
    halve(model.graph, islands)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model


def test_what_overflows_in_fp16_is_right_where_it_is_an_island() -> None:
    x = [400.0, 300.0, -300.0, -400.0]
    assert np.isinf(run(halved(), x)).any()
    np.testing.assert_allclose(run(halved("norm"), x), np.abs([x]), rtol=2e-3)


def test_nodes_of_an_island_pass_values_on_in_fp32_and_keep_their_weights() -> None:
    model = halved("norm")
    assert [n.name for n in model.graph if n.op_type == "Cast"] == ["norm/Cast", "norm/Cast_1"]
    weights = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert {name: weight.dtype for name, weight in weights.items() if weight is not None} == {
        "w": ir.DataType.FLOAT, "w.fp16": ir.DataType.FLOAT16,
    }  # fmt: skip
    assert weights["w"] is not None and weights["w"].numpy()[0] == SHARED


def test_a_value_that_two_nodes_of_an_island_take_is_cast_once() -> None:
    nodes = (node("Mul", "x x", "a", "stem"), node("Mul", "a a", "b", "norm"), node("Sub", "b a", "y", "norm"))
    casts = [n for n in halved("norm", nodes=nodes).graph if n.op_type == "Cast"]
    assert [(n.name, n.outputs[0].name) for n in casts] == [("norm/Cast", "a.float"), ("norm/Cast_1", "y")]


def test_logits_of_an_island_keep_their_name_and_become_fp16() -> None:
    graph = halved("head").graph
    assert [(v.name, v.dtype) for v in (*graph.inputs, *graph.outputs)] == [
        ("x", ir.DataType.FLOAT16), ("y", ir.DataType.FLOAT16),
    ]  # fmt: skip


def test_what_a_node_says_of_types_follows() -> None:
    value = numpy_helper.from_array(np.array([2.0], np.float32))
    nodes = (
        node("Shape", "x", "s", "stem"),
        node("ConstantOfShape", "s", "k", "stem", value=value),
        node("Cast", "k", "f", "stem", to=TensorProto.FLOAT),
        node("Mul", "x f", "y", "stem"),
    )
    assert run(halved(nodes=nodes), [1, 2, 3, 4]).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_keeps_a_divisor_from_being_zero_still_does(sign: int) -> None:
    value = numpy_helper.from_array(np.array([sign * 1e-12], np.float32))
    nodes = (
        node("Constant", "", "c", "norm", value=value),
        node("Add", "x c", "a", "norm"),
        node("Div", "x a", "y", "norm"),
    )
    assert run(halved(nodes=nodes), [0, 2, -2, 0]).tolist() == [[0, 1, 1, 0]]


def test_a_node_with_a_graph_of_its_own_is_refused() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["inner"])], "branch", [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1, 4])],
    )  # fmt: skip
    nodes = (
        node("ReduceMax", "x", "m", "stem", keepdims=0),
        node("Cast", "m", "c", "stem", to=TensorProto.BOOL),
        node("If", "c", "y", "stem", then_branch=branch, else_branch=branch),
    )
    with pytest.raises(ExportError, match="stem/If has an inner graph"):
        halved(nodes=nodes)
