"""Parquet files of images and labels; these tests need pyarrow, which is optional: `pip install edgevit[parquet]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from parquet_files import png, records, written

from edgevit.data.parquet import Columns, find_columns, refuse_missing_shards, refuse_unlabelled, rows
from edgevit.errors import DataError


def test_images_and_labels_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", ["cat", "dog"], image=records(1, 2, 3), label=[1, 0, 1])
    assert find_columns(file) == Columns("image", "label", ["cat", "dog"], ["image", "label"])
    assert [tuple(row) for row in rows(file)] == [(png(1), 1), (png(2), 0), (png(3), 1)]
    plain = written(tmp_path / "b.parquet", IMG=[png(1)], other=[""], category=["cat"])
    assert [tuple(row) for row in rows(plain)] == [(png(1), "cat")]


def test_the_only_column_with_class_names_is_that_of_labels(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", ["cat"], "species", image=records(1), species=[0], age=[7])
    assert find_columns(file).label == "species"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": ["a"], "label": [0]}, r"has the columns 'picture', 'label', and none of them hold encoded images"),
        ({"a": [b"1"], "b": [b"2"], "label": [0]}, r"and 2 of them hold encoded images; name one 'image'"),
        (
            {"image": [b"1"], "kind": [0]},
            r"has the columns 'image', 'kind' and none for the class of an image; name it",
        ),
        ({"image": [{"bytes": None, "path": "x"}], "label": [0]}, r"none of them hold encoded|row 0, has no image"),
        ({"image": [b"1"], "label": [None]}, r"row 0, has the label None, expected a number or a name"),
        ({"image": [b"1"], "label": [0.5]}, r"row 0, has the label 0.5, expected"),
    ],
)
def test_files_without_images_or_labels_are_refused(tmp_path: Path, columns: Any, message: str) -> None:
    file = written(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=message):
        refuse_unlabelled(file)
        list(rows(file))


def test_labels_without_a_class_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", ["cat", "dog"], image=records(1, 2), label=[0, -1])
    with pytest.raises(DataError, match=r"row 1, has the label -1, which is none of the 2 classes"):
        list(rows(file))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", image=records(1), label=[0])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot read .*a.parquet: "):
        find_columns(file)


def test_without_pyarrow_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"a.parquet needs pyarrow to be read; `pip install pyarrow` installs it"):
        find_columns(tmp_path / "a.parquet")


def test_files_that_are_missing_beside_others_are_noticed() -> None:
    refuse_missing_shards([Path("train-00000-of-00001.parquet"), Path("mine.parquet")])
    two = [Path(f"train-0000{i}-of-00002.parquet") for i in range(2)]
    refuse_missing_shards(two)
    with pytest.raises(DataError, match=r"0-of-00002.parquet is one of 2 files of 'train' of which 1 are here"):
        refuse_missing_shards(two[:1])
