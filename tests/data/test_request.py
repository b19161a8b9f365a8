"""Images and classes are refused before torch is imported, as far as paths and names can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgevit.data.request import check_data
from edgevit.errors import DataError, UnknownNameError


def test_names_that_neither_the_data_nor_the_base_has_are_refused(tmp_path: Path) -> None:
    check_data("digits", "3, 5")
    with pytest.raises(UnknownNameError, match="no class 'three'; known: 0, 1"):
        check_data("digits", "three")
    names = tmp_path / "names.txt"
    names.write_text("three\nfour\n")
    check_data("digits", "three", names)


def test_a_part_of_a_name_with_a_comma_is_told_how_the_whole_is_given(tmp_path: Path) -> None:
    for name in ("cat", "crane, bird"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"""no class 'crane'; .* in double quotes, as in --classes '"crane, bird"'"""):
        check_data(tmp_path, "cat,crane, bird")
    check_data(tmp_path, 'cat,"crane, bird"')


def test_names_that_only_timm_could_read_are_left_to_it(tmp_path: Path) -> None:
    for name in ("n01440764", "n01443537"):
        (tmp_path / name).mkdir()
    check_data(tmp_path, "tench")


def test_unlabelled_images_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"unlabelled images: .*nowhere does not exist"):
        check_data("digits", unlabelled=tmp_path / "nowhere")
