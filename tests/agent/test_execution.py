"""An engine as it is opened, and what it is fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from standin_board import build, model_for, play

from edgevit.agent.execution import Tensor, import_tensorrt, make_log, open_engine, random_bytes
from edgevit.agent.runners import RunnerError


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_random_inputs_are_the_same_in_every_process_and_fill_the_batch(dtype: str) -> None:
    import numpy as np

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
