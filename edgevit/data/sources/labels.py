"""A table of labels, CSV or TSV: one row per image, with its file and its class, and perhaps its part.

The first row names the columns: `file_name` and `label` as Hugging Face's `metadata.csv` has them, or others of their
usual names below. Files are relative to the folder of the table. Without a column for the part, parts are split off by
seed. A table with `val` and without `test` has `val` as its test part, as folders do.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from edgevit.data.parquet import LABEL_COLUMNS
from edgevit.data.sources import Part, Reference
from edgevit.data.sources.folder import NAMES, Images
from edgevit.errors import DataError
from edgevit.records.class_names import class_name as composed

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COLUMNS = {  # usual names of each column, in lower case
    "file": ("file_name", "filename", "file", "image", "image_path", "filepath", "path", "img"),
    "class": LABEL_COLUMNS,
    "part": ("split", "part", "subset", "set"),
}
_LIMIT_BYTES = 1 << 30
PART_OF: Mapping[str, Part] = {
    **{word: part for part, words in NAMES.items() for word in words}, "training": "train", "testing": "test",
    "dev": "validation",
}  # fmt: skip


def _column(column: str, header: list[str], table: Path) -> int | None:
    """Find the position of a column by its usual names; None: there is no part column.

    Raises:
        DataError: the table has no column for the file or the class.
    """
    names = [name.strip().lower() for name in header]
    for name in _COLUMNS[column]:
        if name in names:
            return names.index(name)
    if column == "part":
        return None
    raise DataError(
        f"{table} has the columns {', '.join(map(repr, header[:8]))} and none for the {column} of an image; name it "
        f"{_COLUMNS[column][0]!r} in the first row"
    )


_Rows = dict[Part, dict[str, list[Reference]]]


@lru_cache(maxsize=4)
def _read(table: Path, changed_ns: int) -> _Rows:
    """Read the files of each class in each part.

    Raises:
        DataError: the table cannot be read, lacks a column or a value, or gives a file two classes or parts.
    """
    rows: _Rows = {}
    places: dict[str, tuple[Part, str]] = {}
    try:
        if table.stat().st_size > _LIMIT_BYTES:
            raise DataError(f"{table} has {table.stat().st_size / 1e6:.0f} MB, more than any table of labels")
        with table.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _DELIMITERS[table.suffix.lower()]
            lines = csv.reader(file, delimiter=delimiter)
            if not (header := next(lines, [])):
                raise DataError(f"{table} is empty; expected a table of labels")
            if len(header) == 1 and (separator := next((mark for mark in ";\t,|" if mark in header[0]), None)):
                raise DataError(f"{table} separates its columns by {separator!r}, expected {delimiter!r}; save it so")
            file_at, class_at = _column("file", header, table), _column("class", header, table)
            part_at = _column("part", header, table)
            assert file_at is not None and class_at is not None
            for row in lines:
                if not any(value.strip() for value in row):
                    continue
                location = f"{table}, line {lines.line_num},"
                if len(row) < len(header) or not row[file_at].strip() or not row[class_at].strip():
                    raise DataError(f"{location} lacks a file or a class; complete or remove it")
                word = "train" if part_at is None else row[part_at].strip().lower()
                if (part := PART_OF.get(word)) is None:
                    raise DataError(f"{location} has the part {word!r}; expected train, val or test")
                image = str(table.parent / row[file_at].strip())
                if "\\" in image and not Path(image).exists():
                    raise DataError(f"{location} names {row[file_at]!r}, which is no file; write / between folders")
                place = part, composed(row[class_at].strip())
                if places.setdefault(image, place) != place:
                    raise DataError(f"{location} gives {row[file_at]!r} another class or part than a line before")
                rows.setdefault(part, {}).setdefault(place[1], []).append(image)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {table}: {error}; expected a table of labels in UTF-8") from error
    return rows


class Labels(Images):
    """The images that a table lists, and its classes, sorted by name or in the table's order."""

    is_sorted = True

    def __init__(self, table: Path, *, sort: bool = True) -> None:
        super().__init__(table.parent)
        rows = dict(_read(table, table.stat().st_mtime_ns))
        if "validation" in rows and "test" not in rows:
            rows["test"] = rows.pop("validation")
        if "train" not in rows or (len(rows) > 1 and "test" not in rows):
            raise DataError(f"{table} has no {'training' if 'train' not in rows else 'test'} images; add some")
        self._rows = {part: rows[part] for part in NAMES if part in rows}
        self.class_names = tuple(sorted(self._rows["train"]) if sort else self._rows["train"])
        self.parts = {part: dict.fromkeys(classes, table.parent) for part, classes in self._rows.items()}

    def references(self, part: Part, class_name: str) -> list[Reference]:
        images = self._rows[part].get(class_name, [])
        return list(dict.fromkeys(images))


def matches(data: str) -> bool:
    return Path(data).suffix.lower() in _DELIMITERS and Path(data).is_file()


def class_names(data: str) -> tuple[str, ...]:
    return Labels(Path(data)).class_names


def open_source(data: str) -> Labels:
    return Labels(Path(data))
