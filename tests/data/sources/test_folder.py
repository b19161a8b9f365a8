"""Folders of class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgevit.data.sources.folder import open_images, open_source
from edgevit.errors import DataError

Make = Callable[[Path, dict[str, int]], Path]


def test_classes_are_folders_and_hidden_ones_are_none(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"dog": 2, "cat": 1, ".cache": 1})
    source = open_source(str(tmp_path))
    assert source.class_names == ("cat", "dog") and [*source.parts] == ["train"]
    assert source.references("train", "dog") == [str(tmp_path / "dog" / f"{i}.png") for i in range(2)]


def test_a_class_folder_that_is_a_link_to_nothing_is_one_line(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"cat": 1, "dog": 1})
    (tmp_path / "eel").symlink_to(tmp_path / "not mounted")
    with pytest.raises(DataError, match=r"/eel is a link to nothing, and may be a class; mend it, or remove it$"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini", "Desktop.ini", "._0.png"])
def test_what_a_file_manager_leaves_among_images_is_passed_over(tmp_path: Path, image_folder: Make, name: str) -> None:
    image_folder(tmp_path, {"cat": 1})
    (tmp_path / "cat" / name).write_bytes(b"no image")
    assert open_source(str(tmp_path)).references("train", "cat") == [str(tmp_path / "cat" / "0.png")]
    assert open_images(str(tmp_path)).references("train", tmp_path.name) == [str(tmp_path / "cat" / "0.png")]


@pytest.mark.parametrize(
    ("train", "name"),
    [("train", "val"), ("train", "validation"), ("train", "valid"), ("train", "test"), ("Train", "Val")],
)
def test_a_test_part_is_found_by_any_of_its_names(train: str, name: str, tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path / train, {"cat": 1, "dog": 1})
    image_folder(tmp_path / name, {"cat": 3})
    source = open_source(str(tmp_path))
    assert [*source.parts] == ["train", "test"] and len(source.references("test", "cat")) == 3
    with pytest.raises(DataError, match=f"class 'dog' has no folder in {tmp_path / name};"):
        source.references("test", "dog")


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_beside_a_test_part_the_other_one_is_for_choosing(name: str, tmp_path: Path, image_folder: Make) -> None:
    for folder, count in (("train", 3), (name, 2), ("Test", 1)):
        image_folder(tmp_path / folder, {"cat": count})
    source = open_source(str(tmp_path))
    assert {part: len(source.references(part, "cat")) for part in source.parts} == {
        "train": 3, "validation": 2, "test": 1
    }  # fmt: skip


def test_test_images_without_a_class_are_no_part(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"train/cat": 3, "val/cat": 2, "test": 4})
    source = open_source(str(tmp_path))
    assert [*source.parts] == ["train", "test"] and len(source.references("test", "cat")) == 2


def test_a_class_of_trains_is_no_part(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"Car": 5, "Train": 5})
    assert open_source(str(tmp_path)).class_names == ("Car", "Train")
    image_folder(tmp_path / "train", {"cat": 1})
    image_folder(tmp_path / "val", {"cat": 1})
    assert open_source(str(tmp_path)).class_names == ("cat",), "train/ goes before Train/"


def test_train_without_val_says_what_to_do(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path / "train", {"cat": 5, "dog": 5})
    with pytest.raises(DataError, match=r"has train/ but no val/; add val/, or give .*/train itself"):
        open_source(str(tmp_path))
    assert [*open_source(str(tmp_path / "train")).parts] == ["train"]
