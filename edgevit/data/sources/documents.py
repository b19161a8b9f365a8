"""Texts: a folder of class folders with a file per text, as 20 Newsgroups has them, or a CSV table of texts.

Files end in `.txt`, or have no suffix and no byte 0. Class folders may be in folders of the parts, whose names are as
those of image folders, perhaps after a hyphen: `20news-bydate-train`. A table has the columns `text` and `label`. What
is no UTF-8 is read as Latin-1.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgevit.data.parquet import LABEL_COLUMNS
from edgevit.data.sources import Part, Reference
from edgevit.data.sources.folder import NAMES, is_folder, list_entries
from edgevit.errors import DataError
from edgevit.records.class_names import class_name as composed
from edgevit.records.reading import AS_STORED, Reading

_TEXT = "text"  # the column
_CHECKED_BYTES = 512
_TEXT_SUFFIXES = ("", ".txt")


class Text(str):
    """A text, in place of an image."""

    __slots__ = ()

    def tobytes(self) -> bytes:
        return self.encode("utf-8", "surrogatepass")


class Documents:
    """Texts by part, class and key; those of files are read when they are needed."""

    files = False

    def __init__(self, texts: Mapping[Part, Mapping[str, Mapping[str, Path | str]]], data: str) -> None:
        if not texts.get("train"):
            raise DataError(f"{data} has no training texts; expected class folders of .txt files, or train/ of them")
        texts = {("test" if part == "validation" and "test" not in texts else part): texts[part] for part in texts}
        self._keys = {part: {name: list(keys) for name, keys in of_part.items()} for part, of_part in texts.items()}
        self._texts = {
            key: text for of_part in texts.values() for keys in of_part.values() for key, text in keys.items()
        }
        self.parts = tuple(self._keys)
        self.class_names: Sequence[str] = tuple(sorted(texts["train"]))

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return [*self._keys[part].get(class_name, [])]

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Text:
        text = self._texts[str(reference)]
        return Text(text) if isinstance(text, str) else _read(text)


def _read(file: Path) -> Text:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; remove or replace it") from error
    try:
        return Text(content.decode())
    except UnicodeDecodeError:
        return Text(content.decode("latin-1"))


# -- folders -----------------------------------------------------------------------------------------------------------


def _folders(folder: Path) -> dict[str, Path]:
    return {composed(entry.name): folder / entry.name for entry in list_entries(folder) if is_folder(entry)}


def _parts(root: Path) -> dict[Part, Path]:
    """The folder of each part; the root itself, if it has class folders."""
    by_name = {name.lower().rpartition("-")[2]: path for name, path in _folders(root).items()}
    parts = {part: by_name[name] for part, names in NAMES.items() for name in names if name in by_name}
    return parts if "train" in parts else {"train": root}


def _is_text(entry: Path) -> bool:
    if entry.suffix.lower() not in _TEXT_SUFFIXES and not entry.suffix[1:].isdigit():
        return False
    try:
        with entry.open("rb") as file:
            return b"\0" not in file.read(_CHECKED_BYTES)
    except OSError:
        return False


def _of_folder(root: Path) -> Documents:
    texts: dict[Part, dict[str, dict[str, Path | str]]] = {}
    for part, folder in _parts(root).items():
        for name, class_folder in _folders(folder).items():
            files = [class_folder / e.name for e in list_entries(class_folder) if not is_folder(e)]
            if stray := [file for file in files if not _is_text(file)]:
                raise DataError(f"{stray[0]} is no text, and {root} is a folder of texts; move it away")
            texts.setdefault(part, {})[name] = {file.relative_to(root).as_posix(): file for file in files}
    return Documents(texts, str(root))


# -- tables ------------------------------------------------------------------------------------------------------------


def _columns(table: Path) -> tuple[int, int] | None:
    """The positions of text and label in a CSV table; None: it has no such columns."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            header = [name.strip().lower() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    label = next((name for name in LABEL_COLUMNS if name in header), None)
    return (header.index(_TEXT), header.index(label)) if _TEXT in header and label is not None else None


def _of_table(table: Path) -> Documents:
    columns, classes = _columns(table), dict[str, dict[str, Path | str]]()
    assert columns is not None, "it matches"
    limit = csv.field_size_limit(2**31 - 1)  # a text may be long
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            for number, row in enumerate(rows):
                if number == 0 or not row:
                    continue
                if len(row) <= max(columns) or not row[columns[1]].strip():
                    raise DataError(f"{table}, line {rows.line_num}, lacks a text or a label; complete or remove it")
                classes.setdefault(composed(row[columns[1]].strip()), {})[f"{number:08}"] = row[columns[0]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {table}: {error}; expected a table of texts in UTF-8") from error
    finally:
        csv.field_size_limit(limit)
    return Documents({"train": classes}, str(table))


# -- the source --------------------------------------------------------------------------------------------------------


def matches(data: str) -> bool:
    path = Path(data)
    if path.is_file():
        return path.suffix.lower() == ".csv" and _columns(path) is not None
    if not path.is_dir():
        return False
    class_folder = next(iter(_folders(_parts(path)["train"]).values()), None)
    if class_folder is None:
        return False
    files = [class_folder / entry.name for entry in list_entries(class_folder) if not is_folder(entry)]
    return bool(files) and all(map(_is_text, files))


def class_names(data: str) -> Sequence[str]:
    return open_source(data).class_names


def open_source(data: str) -> Documents:
    path = Path(data)
    return _of_folder(path) if path.is_dir() else _of_table(path)
