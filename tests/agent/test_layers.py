"""Which layers an engine has, and how many of them are fused attention."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.agent.layers import count_fused, describe_layer, parse_layers, with_times
from edgevit.agent.runners import RunnerError

KERNEL = {"Name": "_gemm_mha_v2_myl0_17", "LayerType": "kgen", "TacticName": "_gemm_mha_v2_0x957a2fe283f77dcf35c142c1"}


@pytest.mark.parametrize(
    ("layers", "fused"),
    [
        ([KERNEL, {**KERNEL, "Name": "renamed"}], 2),
        ([{"Name": "fused", "LayerType": "kgen_mha", "TacticName": "x"}], 1),
        (["_gemm_mha_v2_myl0_17", "/encoder/mha/MatMul_myl0_16"], 1),
        ([{"Name": "/encoder/mha/attn/mha_prob/key/MatMul_myl0_16", "LayerType": "gemm"}], 0),
        ([{"Name": "{ForeignNode[a...b]}", "LayerType": "Myelin"}, {"Name": "conv", "LayerType": "Conv"}], None),
        ([{"Name": "{ForeignNode[a...b]}"}, KERNEL], 1),
        ([{"Name": 5, "TacticName": None}, None, 7, []], 0),
        ([], 0),
    ],
)
def test_fused_attention_is_counted_by_the_kernels_own_name(layers: list[Any], fused: int | None) -> None:
    assert count_fused(parse_layers(json.dumps({"Layers": layers, "Bindings": []}))) == fused


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Layers": 3}', "[" * 100_000, '{"Layers": {}}'])
def test_layer_information_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(RunnerError, match="the layer information"):
        parse_layers(text)


def test_a_name_may_hold_what_json_would_escape() -> None:
    (layer,) = parse_layers('{"Layers": [{"Name": "blocks.0\tattn\n"}]}')
    assert layer == {"Name": "blocks.0\tattn\n"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["Layers", "Name", "TacticName"]) | st.text(), inner)
    ),
)


@given(st.text() | json_values.map(json.dumps) | st.lists(json_values).map(lambda v: json.dumps({"Layers": v})))
def test_no_layer_information_crashes(text: str) -> None:
    try:
        layers = parse_layers(text)
    except RunnerError:
        return
    fused = count_fused(layers)
    assert fused is None or 0 <= fused <= len(layers)


KERNELS = [
    {
        "Name": "_gemm_mha_v2_myl0_17",
        "LayerType": "kgen",
        "TacticName": "_gemm_mha_v2_0x957a",
        "Metadata": "[ONNX Layer: blocks.0.attn/MatMul]\x1e[ONNX Layer: blocks.0.attn/Softmax]",
        "Outputs": [{"Name": "o", "Format/Datatype": "Half"}],
    },
    {
        "Name": "conv + PWN(PWN(blocks.0/Add), blocks.0.mlp.act/Gelu)",
        "LayerType": "CaskConvolution",
        "TacticName": "0x00",
    },
    {
        "Name": "Reformatting CopyNode for Input Tensor 0 to head/Gemm + head/Add",
        "Outputs": [{"Format/Datatype": "Row major linear FP32"}],
    },
    {
        "Name": "{ForeignNode[blocks.0.norm1/Mul...head/Gemm]}",
        "Outputs": [{"Format/Datatype": "Two wide channel FP16"}],
    },
    "patch_embed.proj/Conv || patch_embed.proj/Conv_1",
    {"Name": "x", "Outputs": [{"Format/Datatype": "Int64"}]},
    {"Name": "y", "Outputs": [{"DataType": "Half", "Format": "Row major linear FP16 format (kLINEAR)"}]},
]


def test_a_layer_is_described_by_what_each_release_tells_of_it() -> None:
    mha, pointwise, copy, opaque, conv, odd, of_11 = map(describe_layer, KERNELS)
    assert (mha.fused, mha.precision, mha.kind) == (True, "fp16", "kgen")
    assert mha.nodes == ("blocks.0.attn/MatMul", "blocks.0.attn/Softmax")
    assert pointwise.nodes == ("blocks.0/Add", "blocks.0.mlp.act/Gelu") and pointwise.tactic is None
    assert copy.nodes == ("head/Gemm", "head/Add") and copy.precision == "fp32"
    assert opaque.nodes == ("blocks.0.norm1/Mul", "head/Gemm") and opaque.precision == "fp16"
    assert conv.nodes == ("patch_embed.proj/Conv", "patch_embed.proj/Conv_1") and conv.kind is None
    assert (odd.nodes, odd.precision, odd.fused) == ((), "Int64", False)
    assert of_11.precision == "fp16"


def test_times_go_to_the_layers_of_their_names_and_of_equal_names_in_order() -> None:
    known = [describe_layer(name) for name in ("a/Add", "b/Mul", "a/Add")]
    timed = with_times(known, [[("a/Add", 1), ("new", 2), ("a/Add", 3)], [("a/Add", 4), ("new", 5), ("a/Add", 6)]])
    assert [(layer.name, layer.nodes, layer.times_ns) for layer in timed] == [
        ("a/Add", ("a/Add",), (1, 4)),
        ("new", (), (2, 5)),
        ("a/Add", ("a/Add",), (3, 6)),
    ]


@pytest.mark.parametrize("inferences", [[], [[]], [[("a", 1)], [("b", 1)]], [[("a", 1)], [("a", 1), ("a", 2)]]])
def test_inferences_of_different_layers_have_no_times(inferences: list[list[tuple[str, int]]]) -> None:
    with pytest.raises(RunnerError, match="did not time the same layers"):
        with_times([], inferences)


@given(json_values)
def test_no_layer_crashes_its_description(layer: Any) -> None:
    described = describe_layer(layer)
    assert isinstance(described.name, str) and all(described.nodes)
