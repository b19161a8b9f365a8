from __future__ import annotations

from pathlib import Path

import pytest
from standin_board import write_model

from edgevit.agent.runners import onnxruntime as runner


def test_a_session_runs_with_its_values_bound_and_says_that_no_transfer_is_timed(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model.onnx"))
    for transfers, stated in ((True, "included"), (False, "excluded")):
        with runner.open_runner(model, 3, transfers=transfers) as loaded:
            assert loaded.environment["transfers"] == stated
            assert loaded.provider == "CPUExecutionProvider"
            loaded.infer()


@pytest.mark.parametrize("fp16", [False, True])
def test_the_tensorrt_provider_keeps_its_caches_and_follows_the_type_of_the_file(
    fp16: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = str(write_model(tmp_path / "model.onnx", fp16=fp16))
    first, second = runner._with_options(runner.PROVIDERS["tensorrt"], model)
    assert first == (
        "TensorrtExecutionProvider",
        {
            "trt_fp16_enable": fp16,
            "trt_engine_cache_enable": True,
            "trt_engine_cache_path": str(tmp_path / "edgevit/onnxruntime"),
            "trt_timing_cache_enable": True,
            "trt_timing_cache_path": str(tmp_path / "edgevit/onnxruntime"),
        },
    )
    assert second == "CUDAExecutionProvider"
    assert (tmp_path / "edgevit/onnxruntime").is_dir()
    assert runner._with_options(runner.PROVIDERS["cuda"], model) == ["CUDAExecutionProvider"]
