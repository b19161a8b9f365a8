from __future__ import annotations

from pathlib import Path

import pytest

from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.serving.request import PackageRequest


def test_exactly_one_application_is_chosen(tmp_path: Path) -> None:
    assert PackageRequest(model=tmp_path, cpp=True, out=tmp_path / "o").application() == "cpp"
    with pytest.raises(OptionError, match="not none"):
        PackageRequest(model=tmp_path, out=tmp_path / "o").check()
    with pytest.raises(OptionError, match="not --triton and --python"):
        PackageRequest(model=tmp_path, triton=True, python=True, out=tmp_path / "o").check()


def test_what_is_no_model_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    with pytest.raises(CheckpointError, match=r"is not a model folder; `edgevit export .*m\.onnx` makes one"):
        PackageRequest(model=tmp_path / "m.onnx", triton=True, out=tmp_path / "o").check()
    with pytest.raises(CheckpointError, match=r"there is no .*m\.engine; `edgevit export MODEL --trt`"):
        PackageRequest(model=tmp_path / "m.engine", triton=True, out=tmp_path / "o").check()
    with pytest.raises(UnknownNameError, match="no precision 'half'"):
        PackageRequest(model=tmp_path, triton=True, precision="half", out=tmp_path / "o").check()
