"""Packed images, which are unpacked once into the user's cache, under a name by their content.

An archive of any other kind of data, or of pairs such as 0001.jpg and 0001.cls (WebDataset); a Parquet file as Hugging
Face has it; or a folder of Parquet files alone, `train-...`, `validation-...` and `test-...` being its parts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from csv import writer
from pathlib import Path, PurePosixPath

from edgevit.data import parquet, sources
from edgevit.data.archives import SUFFIXES, Member, members, reading_packed
from edgevit.data.sources import ImageSource, Part
from edgevit.data.sources.folder import ANNOTATIONS, is_folder, list_entries
from edgevit.data.sources.labels import PART_OF, Labels
from edgevit.errors import DataError
from edgevit.records.lock import in_turn
from edgevit.records.writing import cache_folder, file_sha256, new_folder, write_whole, writing

logger = logging.getLogger(__name__)

_LAYOUT = 1  # version of the cache's folders; raise it where the same file would become another folder
FILES, TABLE = (
    "files",
    "labels.csv",
)  # names in a folder of the cache: the packed files, and labels that cannot name folders
_LARGE_BYTES = 10**9
_RATIO = 100  # largest ratio of unpacked to packed size; a large file beyond it is no data set
_BLOCK_BYTES = 4096  # space that the smallest file takes on a disk

_Row = tuple[str, int | str, Part]  # file, label, part


def _parquet_files(path: Path) -> list[Path]:
    """The Parquet file, or those of a folder that holds no images, perhaps in a folder for each part."""
    if not path.is_dir():
        return [path] if path.suffix.lower() == parquet.SUFFIX and path.is_file() else []
    entries = list_entries(path)
    folders = [path / entry.name for entry in entries if is_folder(entry)]
    if not folders:
        files = [file for entry in entries if (file := path / entry.name).suffix.lower() not in ANNOTATIONS]
        return files if all(file.suffix.lower() == parquet.SUFFIX for file in files) else []
    if len(folders) > 1 and any(folder.name.lower() not in PART_OF for folder in folders):
        return []
    below = [_parquet_files(folder) for folder in folders]
    return [file for files in below for file in files] if all(below) else []


def _content(file: Path, cache: Path) -> str:
    """Hash the content of a file; the hash is stored beside what `stat` tells of the file, by which a change shows."""
    with reading_packed(file):
        status = file.stat()
        state = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} {file.resolve()}"
        stored = cache / f".{hashlib.sha256(os.fsencode(state)).hexdigest()[:32]}"
        if stored.is_file():
            return stored.read_text()
        content = file_sha256(file)
    write_whole(stored, content)
    return content


def _unpacked(data: str) -> Path:
    """The folder of the unpacked data, which is made where it is missing."""
    parquet_files = _parquet_files(Path(data))
    parquet.refuse_missing_shards(parquet_files)
    files, parts = parquet_files or [Path(data)], _parts(parquet_files)
    cache = cache_folder("unpacked")
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with in_turn(cache / ".lock"):
            key = f"{_LAYOUT} {[_content(file, cache) for file in files]} {parts}"
            folder = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
            if not folder.is_dir():
                packed_bytes = sum(file.stat().st_size for file in files)
                if packed_bytes > _LARGE_BYTES:
                    logger.warning("unpacking %s (%.1f GB) into %s, once", data, packed_bytes / 1e9, folder)
                with new_folder(folder) as temporary:
                    (temporary / FILES).mkdir()
                    if parquet_files:
                        rows: list[_Row] = []
                        _write(_of_parquet(files, parts, rows), temporary / FILES, data, packed_bytes)
                        names = parquet.find_columns(files[0]).names
                    else:
                        _write(members(Path(data)), temporary / FILES, data, packed_bytes)
                        rows, names = _pairs(temporary / FILES, data), None
                    if rows:
                        _write_table(temporary / TABLE, rows, names)
    return folder


def _unpacked_files(data: str) -> Path:
    return _innermost(_unpacked(data) / FILES)


def _innermost(folder: Path) -> Path:
    """Follow folders that hold nothing but a folder of folders."""
    while len(entries := list_entries(folder)) == 1 and is_folder(entries[0]):
        if not any(is_folder(entry) for entry in list_entries(entries[0].path)):
            break
        folder = folder / entries[0].name
    return folder


def _parts(files: Sequence[Path]) -> list[Part]:
    """The part of each Parquet file, by the first word of its name or by its folder; `train` if there is one part."""
    words = [(re.split(r"[-_.]", file.name.lower())[0], file.parent.name.lower()) for file in files]
    parts: list[Part] = [next((PART_OF[word] for word in pair if word in PART_OF), "train") for pair in words]
    return parts if len(set(parts)) > 1 else ["train" for _ in parts]


def _of_parquet(files: Sequence[Path], parts: Sequence[Part], rows: list[_Row]) -> Iterator[Member]:
    """The images of Parquet files; their labels are appended to `rows`."""
    for index, (file, part) in enumerate(zip(files, parts, strict=True)):
        for number, (image, label) in enumerate(parquet.rows(file)):
            suffix = ".jpg" if image.startswith(b"\xff\xd8") else ".png" if image.startswith(b"\x89PNG") else ""
            name = f"{part}/{index:04}-{number:07}{suffix}"
            if label is not None:
                rows.append((name, label, part))
            yield Member(PurePosixPath(name), len(image), iter([image]))


def _write(packed: Iterator[Member], folder: Path, data: str, packed_bytes: int) -> None:
    """Write files below a folder.

    Raises:
        DataError: two have one path, or they are larger than the disk or than images can be.
    """
    free, total = shutil.disk_usage(folder).free, 0
    limit = min(free, max(_LARGE_BYTES, _RATIO * packed_bytes))
    for path, size, chunks in packed:
        total += max(size, _BLOCK_BYTES)
        if total > limit:
            raise DataError(
                f"{data} has {packed_bytes / 1e6:.1f} MB, and more than {limit / 1e6:.1f} MB unpacked; {folder.parent} "
                f"has {free / 1e6:.1f} MB free: if it is sound, unpack it yourself and give the folder"
            )
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("xb") as file:
                file.writelines(chunks)
        except (FileExistsError, NotADirectoryError):
            raise DataError(f"{data} holds {str(path)!r} twice, or as a file and a folder; pack it again") from None


def _pairs(folder: Path, data: str) -> list[_Row]:
    """The rows of a WebDataset: images and their labels in files of one name; empty if it is none.

    Raises:
        DataError: some images have no label.
    """
    entries = list_entries(folder)
    if any(is_folder(entry) for entry in entries):
        return []
    inside = [folder / entry.name for entry in entries]
    labels: dict[str, int | str] = {}
    for path in inside:
        key, _, kind = path.name.partition(".")
        if kind.lower() in ("cls", "json"):
            with reading_packed(path):
                text = path.read_text("utf-8")
                stated = json.loads(text) if kind.lower() == "json" else text.strip()
                label = stated.get("label") if isinstance(stated, dict) else stated
                if isinstance(label, (int, str)) and label != "":
                    labels[key] = int(label) if str(label).isdecimal() else label
    images = [path for path in inside if path.suffix.lower() not in ANNOTATIONS | {".cls"}]
    if labels and (bare := [path.name for path in images if path.name.partition(".")[0] not in labels]):
        raise DataError(f"{data} holds {bare[0]!r} and no .cls or .json of this name with its label; add it")
    return [(path.name, labels[path.name.partition(".")[0]], "train") for path in images] if labels else []


def _write_table(table: Path, rows: Sequence[_Row], names: Sequence[str] | None) -> None:
    """Write a table of labels, class by class: in the order of the numbers, or by name."""
    if all(isinstance(label, int) for _, label, _ in rows):
        width = max(len(str(label)) for _, label, _ in rows)
        ranked = sorted(rows, key=lambda row: row[1])
        named = [
            (file, f"{label:0{width}}" if names is None else names[int(label)], part) for file, label, part in ranked
        ]
    else:
        named = sorted(((file, str(label), part) for file, label, part in rows), key=lambda row: row[1])
    with table.open("x", encoding="utf-8", newline="") as opened:
        lines = writer(opened)
        lines.writerow(("file_name", "label", "split"))
        lines.writerows((f"{FILES}/{file}", name, part) for file, name, part in named)


@contextmanager
def _named(data: str, folder: Path) -> Iterator[None]:
    """Name the data as its user does in errors."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).replace(str(folder), data)) from error


def matches(data: str) -> bool:
    path = Path(data)
    return (path.name.lower().endswith(SUFFIXES) and path.is_file()) or bool(_parquet_files(path))


def class_names(data: str) -> Sequence[str]:
    return open_source(data).class_names


def open_source(data: str) -> Labels | ImageSource:
    for file in _parquet_files(Path(data))[:1]:
        parquet.refuse_unlabelled(file)
    folder = _unpacked(data)
    if (folder / TABLE).is_file():
        with _named(data, folder / TABLE):
            return Labels(folder / TABLE, sort=False)
    inner = _innermost(folder / FILES)
    with _named(data, inner):
        return sources.open_source(inner)


def open_images(data: str) -> ImageSource:
    folder = _unpacked_files(data)
    with _named(data, folder):
        return sources.open_images(folder)


def open_pictures(data: str) -> ImageSource:
    folder = _unpacked_files(data)
    with _named(data, folder):
        return sources.open_pictures(folder)
