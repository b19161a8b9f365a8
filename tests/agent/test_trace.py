"""ONNX Runtime's trace, and which node of the file each of its nodes comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgevit.agent.protobuf import Node
from edgevit.agent.runners import RunnerError
from edgevit.agent.trace import find_origins, read_trace


def node(name: str, inputs: str, outputs: str) -> Node:
    return Node(name, "Op", tuple(inputs.split()), tuple(outputs.split()))


def test_a_node_that_was_fused_or_inserted_is_traced_to_the_file() -> None:
    file = [
        node("embed/Conv", "images w", "a"),
        node("fc1/MatMul", "a w1", "b"),
        node("fc1/Add", "b b1", "c"),
        node("act/Gelu", "c", "d"),
        node("attn/MatMul", "d k", "s"),
    ]
    optimised = [
        node("conv_nchwc", "images w", "a_nchwc"),  # inserted: it serves the node that puts its output in order
        node("ReorderOutput", "a_nchwc", "a"),  # makes the tensor that the convolution made
        node("fc1/MatMul", "a w1", "b"),
        node("BiasGelu_token_3", "b b1", "d"),
        node("Transpose_token_4", "k", "k_t"),
        node("attn/MatMul/MatMulScaleFusion/", "d k_t", "s"),
        node("Cast_token_5", "s", "out"),  # serves nobody: it belongs to what it reads
        node("Constant_token_6", "", "unused"),
    ]
    assert find_origins(file, optimised) == {
        "conv_nchwc": ("embed/Conv",),
        "ReorderOutput": ("embed/Conv",),
        "fc1/MatMul": ("fc1/MatMul",),
        "BiasGelu_token_3": ("act/Gelu",),
        "Transpose_token_4": ("attn/MatMul",),
        "attn/MatMul/MatMulScaleFusion/": ("attn/MatMul",),
        "Cast_token_5": ("attn/MatMul",),
    }


def events(runs: int, names: tuple[str, ...] = ("a/Add", "b/Mul")) -> list[dict[str, Any]]:
    made = []
    for run in range(runs):
        began = 1000 * run
        made.append({"cat": "Session", "name": "model_run", "ts": began, "dur": 900})
        for i, name in enumerate(names):
            told = {"op_name": name[2:], "output_type_shape": [{"float": [1]}]}
            made.append({"name": f"{name}_kernel_time", "ts": began + 100 * i, "dur": 10 * run + i, "args": told})
            made.append({"name": f"{name}_fence_before", "ts": began + 100 * i, "dur": 1})
    return made


def written(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_the_last_runs_count_and_the_warm_up_before_them_does_not(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path / "t.json", events(4)), 2, {"a/Add": ("x/Add",)})
    assert (first.name, first.kind, first.precision, first.nodes) == ("a/Add", "Add", "fp32", ("x/Add",))
    assert (first.times_ns, second.times_ns, second.nodes) == ((20000, 30000), (21000, 31000), ())


@pytest.mark.parametrize("content", [events(1), [], {}, [1], [{"name": "model_run"}], events(2, ())])
def test_a_trace_of_something_else_is_refused(content: object, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="ONNX Runtime's profile"):
        read_trace(written(tmp_path / "t.json", content), 2, {})
