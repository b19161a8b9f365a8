"""An ONNX file through ONNX Runtime, whatever its own batch is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from small_models import random_base

from edgevit.errors import CheckpointError
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.session import OnnxModel, joined, open_session, runtime_boundary


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    """A network, and its file of a fixed batch of four."""
    network, path = random_base(depth=1), tmp_path_factory.mktemp("session") / "model.onnx"
    write_onnx(network, path, input_size=(3, 32, 32), batch=4, opset=20, metadata={"split": "[1, 2]"})
    return network, path


@pytest.mark.parametrize("count", [1, 4, 6])
def test_batches_of_any_size_go_through_a_file_of_four(four: tuple[torch.nn.Module, Path], count: int) -> None:
    network, path = four
    images = torch.randn(count, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(OnnxModel(path).predict(images), network(images), rtol=1e-5, atol=1e-4)


def test_tokens_are_joined_as_tokens_and_levels_as_values() -> None:
    whole = torch.randn(2, 3, 5, 4)  # tokens of three blocks, of which the first is a class token
    apart = [part for of_depth in whole.unbind(1) for part in (of_depth[:, 0], of_depth[:, 1:])]
    assert torch.equal(joined(apart), whole.flatten(1, 2)) and joined(apart[:1]) is apart[0]
    levels = [torch.randn(2, 3, size, size) for size in (2, 1)]
    assert torch.equal(joined(levels), torch.cat([level.flatten(1) for level in levels], 1))


def test_metadata_is_read_as_what_it_should_be(four: tuple[torch.nn.Module, Path]) -> None:
    model = OnnxModel(four[1])
    assert model.described("split", tuple[int, ...]) == (1, 2)
    with pytest.raises(
        CheckpointError, match=r"model\.onnx has no 'class_names' in its metadata, so edgevit did not write it"
    ):
        model.described("class_names", tuple[str, ...])
    with pytest.raises(CheckpointError, match=r"'split' in its metadata, .*; export the model again"):
        model.described("split", str)


def test_a_file_that_is_no_image_classifier_is_refused(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "a.onnx")
    with pytest.raises(
        CheckpointError, match="is no classifier of images or texts; give a file that `edgevit export` wrote"
    ):
        OnnxModel(tmp_path / "a.onnx")
    for inputs, outputs in ((1, 0), (2, 1)):
        names = [[f"{kind}{i}" for i in range(count)] for kind, count in (("x", inputs), ("y", max(outputs, 1)))]
        values = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 8, 8]) for n in part] for part in names]
        node = helper.make_node("Sum", names[0], names[1][:1])
        graph = helper.make_graph([node], "sum", values[0], values[1][:outputs])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "b.onnx")
        with pytest.raises(CheckpointError, match=rf"has {inputs} inputs and {outputs} outputs, .*; export it with"):
            OnnxModel(tmp_path / "b.onnx")
    with pytest.raises(CheckpointError, match="no ONNX file at"):
        OnnxModel(tmp_path / "none.onnx")


def test_onnx_runtime_logs_nothing_before_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    logits = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    outside = helper.make_tensor("i", TensorProto.INT64, [1], [99])
    graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["y"])], "g", [images], [logits], [outside])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    with pytest.raises(CheckpointError, match="ONNX Runtime cannot run"), runtime_boundary(Path("g"), CheckpointError):
        session = open_session(tmp_path / "g.onnx")
        session.run(None, {"x": torch.zeros(1).numpy()})
    assert capfd.readouterr().err == ""
