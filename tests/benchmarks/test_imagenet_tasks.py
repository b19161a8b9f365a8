"""Nine tasks on ImageNet: the files are what the script draws, and edgevit reads them."""

from __future__ import annotations

import pytest
from imagenet_tasks import FOLDER, lists
from timm.data import ImageNetInfo

from edgevit.data.classes import listed


def test_the_files_are_what_the_script_draws() -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == lists()


@pytest.mark.parametrize("name", sorted(lists()))
def test_a_file_lists_as_many_classes_of_imagenet_as_its_name_says(name: str) -> None:
    entries = listed(FOLDER / name)
    assert entries is not None and len(entries) == len(set(entries)) == int(name[3:-4])
    assert set(entries) <= set(ImageNetInfo().label_names())
