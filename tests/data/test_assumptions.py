"""What is assumed of a base is said, with where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgevit.data.assumptions import Assumptions, assumptions, shown
from edgevit.data.task import open_task
from edgevit.records.derivation import AssumptionsRecord

PREPROCESSING: dict[str, Any] = {
    "input_size": (3, 32, 32),
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.9,
    "crop_mode": "center",
}
NAME = "vit_tiny_patch16_224"


def assumed(
    data: str | Path, classes: Any, outputs: int, *, base: str | Path = NAME, names: Any = None, **how: Any
) -> Assumptions:
    task = open_task(data, classes, preprocessing=PREPROCESSING, base_outputs=outputs, base_names=names)
    return assumptions(base, task, **{"pretrained": False, "base_classes": None, "overridden": (), **how})


@pytest.fixture
def folders(tmp_path: Path, image_folder: Callable[..., Path]) -> Path:
    return image_folder(tmp_path / "data", dict.fromkeys(["cat", "dog", "eel"], 5))


def test_the_alphabet_of_the_folders_is_said_to_be_assumed(folders: Path) -> None:
    found = assumed(folders, "eel,cat", 3)
    assert found.lines()[0] == (
        "classes: eel is output 2, cat is output 0 of 3 outputs, assumed from the alphabet of the data's folders: "
        "--base-classes FILE gives another order"
    )
    assert found.record().classes_from == "folders" and found.record().output_names == ("cat", "dog", "eel")


def test_names_from_a_list_or_a_model_folder_are_said_to_be_so(folders: Path) -> None:
    names = ["dog", "ant", "eel", "cat"]
    given = assumed(folders, None, 4, names=names, base_classes=names)
    assert (
        given.lines()[0]
        == "classes: cat is output 3, dog is output 0, eel is output 2 of 4 outputs, as --base-classes says"
    )
    assert given.record().output_names == tuple(names) and given.record().classes_from == "option"
    read = assumed(folders, None, 4, names=names, base=folders)
    assert read.lines()[0].endswith("as the model folder says") and read.record().classes_from == "model folder"


def test_imagenets_own_list_is_said_to_be_it(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    image_folder(tmp_path, {"n01440764": 5, "n02123045": 5})
    found = assumed(tmp_path, None, 1000)
    assert found.lines()[0] == (
        "classes: n01440764 is output 0, n02123045 is output 281 of 1000 outputs, as in ImageNet's own list"
    )
    origins = dict.fromkeys(["crop_pct", "interpolation", "mean", "std"], "timm")
    assert found.record() == AssumptionsRecord("imagenet", None, origins)


def test_many_classes_make_one_short_line_and_a_whole_record() -> None:
    found = assumed("digits", None, 10)
    assert found.lines()[0].startswith("classes: 0 is output 0, 1 is output 1, ")
    assert "4 is output 4 and 5 more of 10 outputs" in found.lines()[0] and "5 is" not in found.lines()[0]
    assert "the data's own order" in found.lines()[0]
    assert found.record().output_names == tuple(str(i) for i in range(10))


def test_preprocessing_is_told_with_where_each_part_is_from(folders: Path) -> None:
    by_default = assumed(folders, None, 3).lines()[1]
    assert by_default == (
        "preprocessing: crop_pct 0.9, interpolation bicubic, mean 0.485,0.456,0.406, std 0.5, "
        f"assumed, as timm's defaults for {NAME}"
    )
    part = assumed(folders, None, 3, overridden=["std", "crop_pct"])
    assert part.lines()[1] == (
        "preprocessing: crop_pct 0.9, std 0.5, given; interpolation bicubic, mean 0.485,0.456,0.406, "
        f"assumed, as timm's defaults for {NAME}"
    )
    origins = part.record().preprocessing_from
    assert origins == {"crop_pct": "option", "interpolation": "timm", "mean": "timm", "std": "option"}
    everything = assumed(folders, None, 3, overridden=["crop_pct", "interpolation", "mean", "std"]).lines()[1]
    assert everything.endswith("std 0.5, given")
    by_folder = assumed(folders, None, 3, base=folders)
    assert by_folder.lines()[1].endswith("std 0.5, as the model folder says") and not by_folder.preprocessing_assumed
    pretrained = assumed(folders, None, 3, pretrained=True)
    assert pretrained.lines()[1].endswith(f"those of timm's weights for {NAME}")


@pytest.mark.parametrize(
    ("value", "text"), [(0.9, "0.9"), (1.0, "1"), ([0.5, 0.5, 0.5], "0.5"), ((0.1, 0.2, 0.3), "0.1,0.2,0.3")]
)
def test_a_setting_is_shown_as_its_option_takes_it(value: Any, text: str) -> None:
    assert shown(value) == text


def test_settings_of_what_a_file_builds_are_those_of_the_network_in_it(folders: Path) -> None:
    assert assumed(folders, None, 3, base="mine.py:build").lines()[-1].endswith("for the network in mine.py:build")
