"""The tasks of Vulcan's Table 1: the files are what the script writes, and edgevit reads them."""

from __future__ import annotations

import pytest
from timm.data import ImageNetInfo

from benchmarks.papers.imagenet_tasks import FOLDER, lists
from edgevit.data.classes import listed


def test_the_files_are_what_the_script_writes() -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == lists()


@pytest.mark.parametrize("name", sorted(lists()))
def test_a_file_lists_as_many_classes_of_imagenet_as_its_name_says(name: str) -> None:
    entries = listed(FOLDER / name)
    assert entries is not None and len(entries) == len(set(entries)) == int(name[3:-4])
    assert set(entries) <= set(ImageNetInfo().label_names())


def test_there_are_three_tasks_each_of_25_50_and_100_classes_in_the_order_of_imagenet() -> None:
    files = {name: listed(FOLDER / name) or () for name in lists()}
    assert sorted(map(len, files.values())) == [25] * 3 + [50] * 3 + [100] * 3
    assert all(list(entries) == sorted(entries) for entries in files.values())
