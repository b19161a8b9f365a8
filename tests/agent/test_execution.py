"""An engine as it is opened, and what it is fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from standin_board import build, model_for, play

from edgevit.agent.cuda import open_cuda
from edgevit.agent.execution import Execution, Tensor, import_tensorrt, make_log, open_engine, random_bytes
from edgevit.agent.runners import RunnerError
from edgevit.agent.runners.tensorrt import TensorrtLane


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_random_inputs_are_the_same_in_every_process_and_fill_the_batch(dtype: str) -> None:
    tensor = Tensor("images", dtype, (-1, 3, 40, 40))
    content = random_bytes(tensor, 2)
    assert content == random_bytes(tensor, 2) and len(content) == tensor.bytes_at(2)
    values = np.frombuffer(content, dtype).astype("float64")
    assert values.size == 2 * 3 * 40 * 40 and np.isfinite(values).all() and values.std() > 0.4
    assert set(values) <= {0, 1} or dtype.startswith("float")


REFUSALS = [
    (
        "The engine plan file is generated on an incompatible device, expecting compute 8.7 got compute 8.6, please "
        "rebuild.",
        "built for compute capability 8.6, this board has 8.7",
    ),
    (
        "1: [stdArchiveReader.cpp::StdArchiveReader::40] Error Code 1: Serialization (Serialization assertion "
        "stdVersionRead == serializationVersion failed.Version tag does not match. Note: Current Version: 213, "
        "Serialized Engine Version: 205)",
        "built by another TensorRT (its files are version 205), this board has 10.3.0 (version 213)",
    ),
    ("something new", "TensorRT 10.3.0 does not take it as an engine: something new"),
]


@pytest.mark.parametrize(("said", "message"), REFUSALS)
def test_what_tensorrt_logs_becomes_the_reason(
    said: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    engine = build(model_for("10.3.0", tmp_path))["engine"]
    trt = import_tensorrt()
    log = make_log(trt)

    def refuse(runtime: Any, content: bytes) -> None:
        log.log(trt.ILogger.ERROR, said)

    monkeypatch.setattr(trt.Runtime, "deserialize_cuda_engine", refuse)
    with pytest.raises(RunnerError) as error, open_engine(trt, log, engine):
        pass
    assert str(error.value) == f"{engine}: {message}; build it again with `edgevit export --trt`"


def test_of_a_long_message_the_reason_at_its_end_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path)
    trt = import_tensorrt()
    log = make_log(trt)
    nodes, reason = " + ".join(f"blocks.{i}.mlp.fc1/MatMul" for i in range(40)), "due to insufficient workspace. See"
    log.log(
        trt.ILogger.ERROR, f"10: [b.cpp::f::1] Error Code 10: Could not find any implementation for {nodes} {reason}"
    )
    (line,) = log.errors
    assert line.startswith("Error Code 10: Could not find any") and line.endswith(reason) and len(line) < 250


def _with_tokens_of_all_images(path: Path) -> Path:
    """Make the output of a small network its tokens, those of all images in one axis."""
    model = onnx.load(path)
    graph = model.graph
    graph.node.append(helper.make_node("Reshape", ["O", "rows"], ["features"], name="rows/Reshape"))
    graph.initializer.append(numpy_helper.from_array(np.array([-1, 64], np.int64), "rows"))
    kind = graph.output[0].type.tensor_type.elem_type
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("features", kind, ["rows", 64]))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("release", ["8.5.2", "10.3.0"])
def test_an_output_has_its_memory_where_its_first_axis_is_not_the_batch(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    engine = build(_with_tokens_of_all_images(model_for(release, tmp_path)), batches=(1, 2, 8))["engine"]
    trt = import_tensorrt()
    with open_engine(trt, make_log(trt), engine) as opened, open_cuda() as cuda:
        execution = Execution(opened, cuda, 2)
        (features,) = opened.outputs
        rows = 2 * 4  # images, and tokens of each
        assert execution.sizes[features.name] == features.bytes_of((rows, 64)) == 4 * features.bytes_at(2)
        lane = TensorrtLane(cuda, execution, 2, transfers=True)
        lane.infer()
        assert lane.parts_ns().keys() == {"copy in", "inference", "copy out"}
        execution.close()
