"""Which layers an engine has, and how many of them are fused attention."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.agent.layers import count_fused, parse_layers
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
