"""What cannot be exported or judged is refused before torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import CheckpointError, EdgeVitError, OptionError, UnknownNameError
from edgevit.exporting.request import FilesRequest, JudgeRequest, check_judging, read_size

FINE: dict[str, Any] = {"part": "test", "max_images": None, "batch_size": 32, "device": "cpu"}


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"part": "train"}, UnknownNameError, "no part of the data 'train'"),
        ({"device": "gpu"}, UnknownNameError, "no device 'gpu'"),
        ({"batch_size": 0}, OptionError, "--batch-size 0"),
        ({"max_images": 0}, OptionError, "--max-images 0"),
    ],
)
def test_a_way_to_judge_that_cannot_be_is_refused(changed: Any, error: type[EdgeVitError], said: str) -> None:
    check_judging("digits", "3,5", **FINE)
    with pytest.raises(error, match=said):
        check_judging("digits", "3,5", **{**FINE, **changed})


@pytest.mark.parametrize("text", ["3x224x192", "3X224X192", "3,224,192"])
def test_a_size_is_read_as_it_is_typed_or_from_a_list_in_a_file(text: str) -> None:
    assert read_size(text, {}) == (3, 224, 192)


def test_the_letters_of_a_suffix_may_be_capitals(tmp_path: Path) -> None:
    file = tmp_path / "model.ONNX"
    file.touch()
    JudgeRequest(model=file).check()
    FilesRequest(model=file).check()
    assert FilesRequest(model=file).folder == tmp_path / "model"
    (tmp_path / "weights.PTH").touch()
    with pytest.raises(CheckpointError, match="contains only weights"):
        FilesRequest(model=tmp_path / "weights.PTH").check()


def test_an_onnx_file_brings_its_own_weights(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    with pytest.raises(CheckpointError, match="there is no"):
        JudgeRequest(model=file).check()
    file.touch()
    JudgeRequest(model=file).check()
    with pytest.raises(OptionError, match="has its own weights and preprocessing; leave out pretrained"):
        JudgeRequest(model=file, pretrained=True).check()


@pytest.mark.parametrize(("given", "said"), [({"batch": 0}, "batch 0 is neither"), ({"opset": 21}, "try 20")])
def test_an_export_that_cannot_be_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        FilesRequest(model=tmp_path, **given).check()
