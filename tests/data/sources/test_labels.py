"""Tables of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.data.sources import class_names, open_source
from edgevit.data.task import open_task
from edgevit.errors import DataError

PREPROCESSING: dict[str, Any] = {"input_size": (3, 32, 32), "interpolation": "bicubic", "mean": (0.5,) * 3,
                                 "std": (0.2,) * 3, "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip


def write(table: Path, text: str) -> Path:
    table.parent.mkdir(exist_ok=True)
    table.write_text(text, encoding="utf-8")
    return table


def test_a_table_as_hugging_face_has_it_is_split_and_read(tmp_path: Path, image_folder: Any) -> None:
    image_folder(tmp_path, {"all": 12})
    names = ['"crane, bird"', "Kno\u0308chel"]
    lines = [f"all/{i}.png,{names[i % 2]}" for i in range(12)]
    table = write(tmp_path / "metadata.csv", "\ufefffile_name,label\r\n" + "\r\n".join(lines) + "\r\n\r\n")
    assert class_names(table) == ("Kn\u00f6chel", "crane, bird")
    task = open_task(table, None, preprocessing=PREPROCESSING, base_outputs=2)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [8, 2, 2]
    assert next(task.test.batches(4))[0].shape == (2, 3, 32, 32)
    assert task.record().data == str(table) and len(task.record().contents) == 3


def test_a_column_gives_the_parts(tmp_path: Path) -> None:
    rows = [f"{split}_{name}{i}.png\t{name}\t{split}" for split in ("train", "val") for name in "ab" for i in range(2)]
    table = write(tmp_path / "list.TSV", "\n".join(["Image\tClass\tSplit", *rows, rows[0]]))
    source = open_source(table)
    assert [*source.parts] == ["train", "test"]
    assert source.references("test", "b") == [str(tmp_path / f"val_b{i}.png") for i in range(2)]
    assert len(source.references("train", "a")) == 2, "a line that is there twice is one image"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"t.csv is empty; expected a table of labels"),
        (
            "a.png,cat\n",
            r"the columns 'a.png', 'cat' and none for the file of an image; name it 'file_name' in the first",
        ),
        ("file,score\n", r"none for the class of an image; name it 'label'"),
        ("file,label\na.png\n", r"t.csv, line 2, lacks a file or a class"),
        ("file,label\na.png,x\na.png,y\n", r"line 3, gives 'a.png' another class or part than a line before"),
        ("file,label,split\na.png,x,later\n", r"line 2, has the part 'later'; expected train, val or test"),
        ("file,label,split\na.png,x,test\n", r"has no training images"),
        ("file;label\na.png;x\n", r"t.csv separates its columns by ';', expected ','; save it so"),
        ("file,label\nall\\a.png,x\n", r"line 2, names 'all\\\\a.png', which is no file; write / between folders"),
    ],
)
def test_a_table_that_is_not_right_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as refusal:
        class_names(write(tmp_path / "t.csv", text))
    assert "\n" not in str(refusal.value)


def test_a_table_in_another_encoding_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("file,label\na.png,\xf6\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot read .*t.csv: .*; expected a table of labels in UTF-8"):
        class_names(tmp_path / "t.csv")
