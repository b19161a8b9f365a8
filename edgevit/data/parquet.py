"""Images and labels of a Parquet file, in the format of Hugging Face's data sets.

A column has encoded images, and another their labels, whose names the file's metadata may state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgevit.data.archives import reading_packed
from edgevit.errors import DataError

SUFFIX = ".parquet"
_IMAGE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "png")  # usual names, in lower case
LABEL_COLUMNS = ("label", "class", "class_name", "category", "labels", "target")
_BATCH = 64  # rows in memory at once
_SHARD = re.compile(r"(?P<part>.*)-\d+-of-(?P<count>\d+)(-[0-9a-f]+)?")  # train-00000-of-00002


class Columns(NamedTuple):
    """Where the images and labels of a file are."""

    image: str
    label: str | None
    names: Sequence[str] | None  # class names of labels 0, 1, ...; None: the file does not state them
    all: Sequence[str]


class LabelledImage(NamedTuple):
    """A row: an encoded image, and its label if the file has labels."""

    image: bytes
    label: int | str | None


def refuse_missing_shards(files: Sequence[Path]) -> None:
    """Refuse some of the files of a part, whose names state how many there are.

    Raises:
        DataError: files are missing.
    """
    present: dict[tuple[Path, str, int], int] = {}
    for file in files:
        if shard := _SHARD.fullmatch(file.stem):
            key = file.parent, shard["part"], int(shard["count"])
            present[key] = present.get(key, 0) + 1
    for (_, part, expected), count in present.items():
        if count != expected:
            raise DataError(
                f"{files[0]} is one of {expected} files of {part!r} of which {count} are here; give a folder of all"
            )


def find_columns(file: Path) -> Columns:
    """Find the columns of images and labels by their usual names, or as the only one that can be meant.

    Raises:
        DataError: the file cannot be read or has no column of images; or pyarrow is missing.
    """
    schema = _opened(file).schema_arrow
    features = _features(schema.metadata or {})
    images = [field.name for field in schema if _is_image(field.type)]
    if (image := _chosen(images, _IMAGE_COLUMNS)) is None:
        raise DataError(
            f"{file} has the columns {_listed(schema.names)}, and {len(images) or 'none'} of them hold encoded "
            f"images; name one {_IMAGE_COLUMNS[0]!r}"
        )
    classes = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
    usual = [name for name in schema.names if name.lower() in LABEL_COLUMNS]
    label = _chosen(usual or classes, LABEL_COLUMNS)
    names = features.get(label or "", {}).get("names")
    return Columns(image, label, names if isinstance(names, list) else None, schema.names)


def refuse_unlabelled(file: Path) -> None:
    """Refuse a file without a column of labels.

    Raises:
        DataError: it has none, or several and none of a usual name; or as `find_columns` says.
    """
    columns = find_columns(file)
    if columns.label is None:
        raise DataError(
            f"{file} has the columns {_listed(columns.all)} and none for the class of an image; name it "
            f"{LABEL_COLUMNS[0]!r}"
        )


def rows(file: Path) -> Iterator[LabelledImage]:
    """Read the images and labels of a file, a few at a time.

    Raises:
        DataError: it cannot be read, or a row lacks an image or a label; or as `find_columns` says.
    """
    columns = find_columns(file)
    column_names = [name for name in (columns.image, columns.label) if name is not None]
    number = 0
    with reading_packed(file):
        for batch in _opened(file).iter_batches(batch_size=_BATCH, columns=column_names):
            for row in batch.to_pylist():
                image = row[columns.image]
                image = image["bytes"] if isinstance(image, dict) else image
                label = None if columns.label is None else row[columns.label]
                if not image:
                    raise DataError(f"{file}, row {number}, has no image in {columns.image!r}; remove the row")
                if columns.label is not None and not isinstance(label, (int, str)):
                    raise DataError(f"{file}, row {number}, has the label {label!r}, expected a number or a name")
                if isinstance(label, int) and columns.names is not None and not 0 <= label < len(columns.names):
                    raise DataError(
                        f"{file}, row {number}, has the label {label}, which is none of the {len(columns.names)} "
                        "classes that the file names; leave such files out"
                    )
                yield LabelledImage(image, label)
                number += 1


def _opened(file: Path) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{file} needs pyarrow to be read; `pip install pyarrow` installs it") from None
    with reading_packed(file):
        return ParquetFile(file)


def _features(metadata: dict[bytes, bytes]) -> dict[str, dict[str, Any]]:
    """What Hugging Face's metadata states of each column; empty if there is none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _is_image(kind: Any) -> bool:
    """Whether a column holds bytes, or records {bytes, path}."""
    from pyarrow import types

    if types.is_struct(kind):
        at = kind.get_field_index("bytes")
        return at >= 0 and _is_image(kind.field(at).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _chosen(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The name that is most usual, or else the only one."""
    ranked = sorted((name for name in names if name.lower() in usual), key=lambda name: usual.index(name.lower()))
    return ranked[0] if ranked else names[0] if len(names) == 1 else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8]))
