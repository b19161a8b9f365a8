"""Q/DQ stand around linear layers as TensorRT expects them, and single layers go back to floating point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_base

from edgevit.exporting.graph import trace
from edgevit.exporting.int8.quantising import Quantised, quantise
from edgevit.exporting.int8.write import predicted

IMAGES = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def graph() -> Any:
    return trace(random_base(depth=1), input_size=(3, 32, 32), batch="dynamic", opset=20)


@pytest.fixture(scope="module")
def quantised(graph: Any) -> Quantised:
    return quantise(graph.clone(), [IMAGES], "max")


def test_linear_layers_alone_are_in_int8(graph: Any, quantised: Quantised) -> None:
    nodes = {node.name: node for node in quantised.model.graph}
    assert {node.name for node in graph.graph} <= set(nodes) and quantised.model.opset_imports == {"": 20}
    layers = {layer.name for layer in quantised.layers}
    assert len(layers) == 5
    for node in nodes.values():
        makers = [value.producer() for value in node.inputs if value is not None]
        dequantised = [maker for maker in makers if maker is not None and maker.op_type == "DequantizeLinear"]
        assert len(dequantised) == (2 if node.name in layers else 0)
        for maker in dequantised:
            source, step, zero = maker.inputs
            assert maker.name.partition("/")[0] == node.name.partition("/")[0]
            assert not zero.const_value.numpy().any() and zero.const_value.numpy().dtype == np.int8
            weights = source.const_value is not None
            assert step.const_value.size == (source.shape[1 if "MatMul" in node.name else 0] if weights else 1)
            assert weights or source.producer().op_type == "QuantizeLinear"
    macs = {layer.name.partition("/")[0]: layer.macs for layer in quantised.layers}
    assert macs["blocks.0.mlp.fc1"] == 17 * 64 * 256 and macs["head"] == 64 * 10


def test_layers_go_back_to_what_they_were(graph: Any, quantised: Quantised) -> None:
    expected, rounded = predicted(graph, [IMAGES]), predicted(quantised.model, [IMAGES])
    names = [layer.name for layer in quantised.layers]
    whole = predicted(quantised.without(names), [IMAGES])
    torch.testing.assert_close(whole, expected, rtol=1e-3, atol=1e-3)
    errors = [float((values - expected).norm() / expected.norm()) for values in (rounded, whole)]
    assert 1e-3 < errors[0] < 0.2
    alone = predicted(quantised.without(names[1:]), [IMAGES])
    assert 0 < float((alone - expected).norm() / expected.norm()) < errors[0]
    assert torch.equal(predicted(quantised.model, [IMAGES]), rounded), "a copy was changed"
