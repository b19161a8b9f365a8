"""Data by name or path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.data.sources import class_names, open_source, open_unlabelled
from edgevit.errors import DataError


@pytest.mark.parametrize("ask", [open_source, class_names])
def test_data_that_is_not_there_says_what_is_expected(ask: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist; expected a folder of class folders"):
        ask(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        ask(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no class folders"):
        ask(tmp_path / "empty")


def test_names_are_listed_as_the_opened_source_has_them(tmp_path: Path, image_folder: Any) -> None:
    image_folder(tmp_path / "train", {"dog": 1, "cat": 1})
    (tmp_path / "val").mkdir()
    for data in ("digits", tmp_path):
        assert tuple(class_names(data)) == tuple(open_source(data).class_names)
    assert tuple(class_names(tmp_path)) == ("cat", "dog")


def test_images_without_classes_are_found_at_any_depth(tmp_path: Path, image_folder: Any) -> None:
    image_folder(tmp_path / "a" / "b", {"c": 2})
    source, references = open_unlabelled(tmp_path)
    assert len(references) == 2 and source.read(references[0]).mode == "RGB"


def test_folders_may_be_links_and_what_is_hidden_is_no_image(tmp_path: Path, image_folder: Any) -> None:
    image_folder(tmp_path / "all", {"cat": 2, "dog": 1})
    image_folder(tmp_path / "some" / "pets", {".AppleDouble": 1})
    (tmp_path / "some" / "pets" / "cat").symlink_to(tmp_path / "all" / "cat")
    (tmp_path / "some" / "pets" / "dog").symlink_to("../../all/dog")
    (tmp_path / "all" / "dog" / "back").symlink_to(tmp_path / "some" / "pets")  # a link that leads back to where it is
    folders = [Path(str(r)).parent.name for r in open_source(tmp_path / "some").references("train", "pets")]
    assert folders == ["cat", "cat", "dog"]
    assert len(open_unlabelled(tmp_path / "some")[1]) == 3
