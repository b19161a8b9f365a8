"""Folders of class folders."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
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
    with pytest.raises(DataError, match=r"/eel is a link to nothing, and may be a class; repair or remove it$"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "Desktop.ini", "._0.png", "notes.txt", "0.XML", "a.json"])
def test_litter_and_annotations_beside_images_are_passed_over(tmp_path: Path, image_folder: Make, name: str) -> None:
    image_folder(tmp_path, {"cat": 1})
    (tmp_path / "cat" / name).write_bytes(b"no image")
    source = open_source(str(tmp_path))
    assert source.references("train", "cat") == [str(tmp_path / "cat" / "0.png")]
    assert source.annotations == ({str(tmp_path / "cat" / name)} if name in ("notes.txt", "0.XML", "a.json") else set())
    assert open_images(str(tmp_path)).references("train", tmp_path.name) == [str(tmp_path / "cat" / "0.png")]


@pytest.mark.parametrize("name", ["@eaDir", ".thumbnails", "__MACOSX", ".AppleDouble", ".ipynb_checkpoints"])
def test_folders_of_thumbnails_and_the_like_are_no_classes_and_have_no_images(
    tmp_path: Path, image_folder: Make, name: str
) -> None:
    image_folder(tmp_path, {"cat": 1, name: 1, f"cat/{name}/0.png": 1, f"cat/left/{name}": 1})
    source = open_source(str(tmp_path))
    assert source.class_names == ("cat",)
    assert source.references("train", "cat") == [str(tmp_path / "cat" / "0.png")]


def test_names_in_another_unicode_form_are_the_same_class(tmp_path: Path, image_folder: Make) -> None:
    composed, apart = "Kn\u00f6chel", "Kno\u0308chel"
    image_folder(tmp_path, {f"train/{apart}": 3, f"val/{composed}": 2, "train/Bein": 1, "val/Bein": 1})
    source = open_source(str(tmp_path))
    assert source.class_names == ("Bein", composed) and not source.untrained()
    assert [len(source.references(part, composed)) for part in ("train", "test")] == [3, 2]
    (tmp_path / "train" / composed).mkdir()
    with pytest.raises(
        DataError, match=r"two folders of the class 'Kn.chel', .* \('Kno.u0308chel' and 'Kn.xf6chel'\);"
    ):
        open_source(str(tmp_path))


def test_a_name_in_utf8_is_read_in_a_locale_that_has_none(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"Kn\u00f6chel": 1, "Bein": 1})
    program = "import sys; from edgevit.data.classes import listed; from edgevit.data.sources.folder import open_source"
    program += "; print(ascii([open_source(sys.argv[1]).class_names, listed(sys.argv[2])]))"
    posix = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(tmp_path), "Bein,Kno\u0308chel"]
    said = subprocess.run(command, env=posix, check=True, capture_output=True, text=True).stdout
    assert said == "[('Bein', 'Kn\\xf6chel'), ['Bein', 'Kn\\xf6chel']]\n"


@pytest.mark.parametrize(
    ("link", "target", "what"),
    [
        ("train/cat/up", "..", "a folder that class folders are in"),
        ("train/cat/top", "../..", "a folder that class folders are in"),
        ("train/cat/too", "../dog/young", "a folder of the class 'dog'"),
        ("train/cat/0.png", "../dog/0.png", "a folder of the class 'dog'"),
        ("train/cat/too", "../../val/dog", "a folder of the class 'dog'"),
        ("train/eel", "dog", "a folder of the class 'dog'"),
        ("train/eel", ".", "a folder that class folders are in"),
    ],
)
def test_a_link_to_images_of_other_classes_is_refused(
    tmp_path: Path, image_folder: Make, link: str, target: str, what: str
) -> None:
    image_folder(tmp_path, {"train/cat/young": 1, "train/dog/young": 1, "val/cat": 1, "val/dog": 1})
    (tmp_path / link).symlink_to(target)
    name = link.split("/")[1]
    with pytest.raises(DataError, match=f"/{link} is a link to .*, {what}: its images would count as '{name}'; remove"):
        open_source(str(tmp_path)).references("train", name)
    assert len(open_source(str(tmp_path)).references("train", "dog")) == 1


def test_links_to_images_elsewhere_are_followed_and_no_folder_is_listed_twice(
    tmp_path: Path, image_folder: Make
) -> None:
    image_folder(tmp_path, {"data/cat/young": 2, "store/cats": 3, "store/eels": 1})
    cat = tmp_path / "data" / "cat"
    for name, target in (("more", "../../store/cats"), ("again", "young"), ("back", "."), ("a.png", "young/0.png")):
        (cat / name).symlink_to(target)
    (tmp_path / "data" / "eel").symlink_to("../store/eels")
    source = open_source(str(tmp_path / "data"))
    assert len(source.references("train", "cat")) == 2 + 3 + 1 and len(source.references("train", "eel")) == 1


def test_folders_may_be_deeper_than_pythons_stack(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"cat" + "/d" * 150: 1})
    source, limit = open_source(str(tmp_path)), sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 50)
        images = source.references("train", "cat")
    finally:
        sys.setrecursionlimit(limit)
    assert images == [f"{tmp_path}/cat{'/d' * 150}/0.png"]


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
