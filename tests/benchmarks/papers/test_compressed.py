"""Weights of zero, and weights in INT8."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import timm
import torch
from onnx import TensorProto
from small_base import ARGS, NAME, images, outputs
from torch import nn

from benchmarks.papers.compressed import write_int8, zero_least
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.session import OnnxModel
from edgevit.network.network import Network


def test_the_weights_of_least_magnitude_of_each_layer_are_zero() -> None:
    network = timm.create_model(NAME, num_classes=2, **ARGS)
    with torch.no_grad():
        network.blocks[0].mlp.fc1.weight.mul_(100)  # a threshold of all layers would spare it
    before = {name: value.clone() for name, value in network.state_dict().items()}
    zero_least(network, 0.25)
    layers = {f"{n}.weight" for n, m in network.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    assert "patch_embed.proj.weight" in layers and "head.weight" in layers
    for name, value in network.state_dict().items():
        gone = value == 0 if name in layers else torch.zeros_like(value, dtype=torch.bool)
        assert torch.equal(value[~gone], before[name][~gone])
        if name in layers:
            assert gone.float().mean() == pytest.approx(0.25, abs=0.01)
            assert before[name][gone].abs().max() <= before[name][~gone].abs().min()


@pytest.mark.slow
def test_the_weights_of_products_are_int8_and_the_file_answers_for_any_batch(tmp_path: Path) -> None:
    network = Network(timm.create_model(NAME, num_classes=2, **ARGS).eval())
    file, int8 = tmp_path / "model.onnx", tmp_path / "int8.onnx"
    write_onnx(network, file, input_size=(3, 32, 32), batch="dynamic", opset=20, metadata={})
    write_int8(file, int8)
    weights = onnx.load(int8).graph.initializer
    assert sum(one.data_type == TensorProto.INT8 and len(one.dims) == 2 for one in weights) == 9, (
        "4 a block, and a head"
    )
    assert not any(one.data_type == TensorProto.FLOAT and len(one.dims) == 2 for one in weights)
    expected = outputs(network)
    torch.testing.assert_close(
        OnnxModel(int8).predict(images()), expected, rtol=0, atol=0.1 * float(expected.abs().max())
    )
