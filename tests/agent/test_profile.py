"""Layers timed by the profilers themselves: ONNX Runtime's, and TensorRT's against the stand-ins of every release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from standin_board import RELEASES, build, model_for, play, play_cudart, write_model

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.profile import MOST, profile
from edgevit.agent.runners import RunnerError


def request(model: Path | str, runner: str, **changes: Any) -> MeasurementRequest:
    known = dict(model_sha256="0" * 64, label="small", precision=None, runner=runner, batch=4, samples=7)
    return MeasurementRequest(str(model), **{**known, "duration_s": 0, "warmup": 2, "warmup_seconds": 0, **changes})


def told(asked: MeasurementRequest) -> tuple[dict[str, Any], list[str]]:
    stages: list[str] = []
    return profile(asked, lambda stage, done, **figures: stages.append(stage)), list(dict.fromkeys(stages))


def test_onnx_runtimes_nodes_have_a_time_for_each_inference_and_the_node_they_come_from(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    found, stages = told(request(model, "onnxruntime", options={"threads": 1}))
    assert stages == ["load", "time layers"]  # a warm-up this short has nothing to tell
    assert (found["clock"], len(found["inferences_ns"]), found["environment"]["threads"]) == ("host", 7, "1")
    assert all(len(layer["times_ns"]) == 7 for layer in found["layers"])
    nodes = {node for layer in found["layers"] for node in layer["nodes"]}
    assert {"blocks.0.norm1/LayerNormalization_y", "blocks.0.attn/Softmax_P", "head/MatMul_logits"} <= nodes
    assert all(layer["nodes"] and layer["precision"] == "fp32" for layer in found["layers"])
    within = [sum(times) for times in zip(*(layer["times_ns"] for layer in found["layers"]), strict=True)]
    assert all(nodes <= whole for nodes, whole in zip(within, found["inferences_ns"], strict=True))


@pytest.mark.quick("8.5.2", "10.3.0", "11.4")
@pytest.mark.parametrize("release", RELEASES)
def test_tensorrts_layers_have_a_time_for_each_inference(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    play_cudart(monkeypatch, tmp_path)
    engine = build(model_for(release, tmp_path))["engine"]
    found, _ = told(request(engine, "tensorrt"))
    assert (found["clock"], found["provider"], found["environment"]["tensorrt"]) == ("gpu", "TensorRT", release)
    assert all(len(layer["times_ns"]) == 7 for layer in found["layers"])
    fused = [layer for layer in found["layers"] if layer["fused"]]
    if release.startswith("8"):
        assert [layer["nodes"] for layer in found["layers"]] == [("patch_embed/Reshape_x", "head/MatMul_logits")]
    else:
        assert [layer["nodes"] for layer in fused] == [
            ("blocks.0.attn/MatMul_A", "blocks.0.attn/Softmax_P", "blocks.0.attn/MatMul_O")
        ]
        assert fused[0]["precision"] == "fp16" and fused[0]["tactic"].startswith("_gemm_mha_v2")


def test_no_more_inferences_are_profiled_than_a_trace_holds(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    found, _ = told(request(model, "onnxruntime", samples=10 * MOST, batch=1))
    assert len(found["inferences_ns"]) == MOST


@pytest.mark.parametrize(
    ("runner", "options", "message"),
    [
        ("fake", {}, "the runner 'fake' cannot time layers; those that can: onnxruntime, tensorrt"),
        ("onnxruntime", {"provider": "cuda"}, "cannot time layers with provider 'cuda'"),
        ("tensorrt", {"streams": 2}, "layers are timed on one stream, and --streams is 2"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    runner: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    with pytest.raises(RunnerError, match=message):
        told(request(write_model(tmp_path / "model.onnx"), runner, options=options))
