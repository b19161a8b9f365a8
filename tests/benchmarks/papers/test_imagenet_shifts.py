"""ImageNet-V2 and -R by the names of their folders: by the number of the base's output, or by the class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import edgevit
from benchmarks.papers import imagenet_shifts

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("test_vit", num_classes=len(NAMES))
    save_file(network.state_dict(), tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


@pytest.fixture
def model(base: Path, tmp_path: Path) -> Path:
    """The base for two of its classes, which are its outputs 3 and 1."""
    edgevit.base("test_vit", checkpoint=base, base_classes=NAMES, classes=["dog", "bee"], out=tmp_path / "model")
    return tmp_path / "model"


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *given: object) -> list[list[str]]:
    monkeypatch.setattr(sys, "argv", ["imagenet_shifts.py", *map(str, given)])
    imagenet_shifts.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


def test_folders_by_number_are_those_of_the_same_classes_by_name(
    model: Path, base: Path, image_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    by_name = image_folder(tmp_path / "r", {"dog": 5, "bee": 4, "ant": 3})  # as ImageNet-R: not all of the base's
    by_number = tmp_path / "v2"
    by_number.mkdir()
    for number, name in enumerate(NAMES):
        (by_number / str(number)).symlink_to(by_name / ("ant" if name == "cat" else name))
    given = (model, "--base", "test_vit", "--checkpoint", base, "--data", by_number, by_name)
    v2_base, v2, r_base, r = shown(capsys, monkeypatch, *given)
    assert v2[1:3] == ["v2, 2 of 2 classes", "9"] and r[1:3] == ["r, 2 of 2 classes", "9"]
    assert v2[3:] == r[3:] and v2_base[3:] == r_base[3:]
    assert v2_base[4] == v2[4], "the derived model is the base, restricted"
    assert float(v2_base[3]) <= float(v2_base[4])


def test_a_folder_without_the_classes_is_refused(
    model: Path, image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = image_folder(tmp_path / "other", {"eel": 2, "fox": 2})
    with pytest.raises(SystemExit, match="has no folder of the model's classes, such as 'dog'"):
        shown(capsys, monkeypatch, model, "--data", other)
