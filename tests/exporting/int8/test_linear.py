"""Linear layers are found in a graph with their weights and biases, whatever operator has them."""

from __future__ import annotations

import pytest
import torch
from small_models import random_base

from edgevit.exporting.graph import trace
from edgevit.exporting.int8.linear import find_linear, read_constant

NAMES = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]


@pytest.fixture(scope="module")
def network():
    return random_base(depth=1)


def test_every_linear_layer_has_its_weight_and_bias(network) -> None:
    graph = trace(network, input_size=(3, 32, 32), batch="dynamic", opset=20).graph
    found = find_linear(graph)
    assert [layer.name for layer in found] == [*(f"blocks.0.{name}/MatMul" for name in NAMES), "head/Gemm"]
    modules = dict(network.module.named_modules())
    for layer in found:
        module = modules[layer.name.partition("/")[0]]
        torch.testing.assert_close(layer.read(), module.weight.mT)
        assert layer.bias is not None
        torch.testing.assert_close(read_constant(layer.bias), module.bias)
        layer.write(2 * layer.read())
        torch.testing.assert_close(layer.read(), 2 * module.weight.mT)


def test_a_matrix_that_two_layers_share_is_left_out(network) -> None:
    graph = trace(network, input_size=(3, 32, 32), batch="dynamic", opset=20).graph
    first = find_linear(graph)[0]
    first.node.graph.insert_after(first.node, twin := type(first.node)("", "MatMul", list(first.node.inputs)))
    assert twin.inputs[1] is first.weight
    assert first.name not in [layer.name for layer in find_linear(graph)]
