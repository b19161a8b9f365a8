"""The pictures of an end-to-end bench, and their preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgevit.agent.protobuf import metadata
from edgevit.agent.runners import RunnerError
from edgevit.board.request import MOST_IMAGES
from edgevit.data.sources.folder import is_litter
from edgevit.errors import DataError, OptionError
from edgevit.records.documents import Reader
from edgevit.records.model import Preprocessing, PreprocessingFields, reads_texts
from edgevit.records.model_folder import model_of
from edgevit.records.names import suffix_of

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_READER = Reader(DataError, hint="export the model again")


def find_images(pictures: Path, most: int = MOST_IMAGES) -> list[Path]:
    """Return at most `most` pictures of a folder, spread evenly over all below it, or the picture of a path.

    Raises:
        DataError: there is no picture.
    """
    if not pictures.exists():
        raise DataError(f"there is no {pictures}; --images takes a picture or a folder of them")
    files = (
        [pictures]
        if pictures.is_file()
        else sorted(p for p in pictures.rglob("*") if _is_picture(p.relative_to(pictures)))
    )
    if not files:
        raise DataError(
            f"{pictures} holds no picture ({', '.join(_SUFFIXES)}); --images takes one, or a folder of them"
        )
    return [path.absolute() for path in _spread(files, most)]


def _is_picture(below: Path) -> bool:
    return below.suffix.lower() in _SUFFIXES and not any(map(is_litter, below.parts))


def _spread(paths: Sequence[Path], most: int) -> list[Path]:
    return [paths[i * len(paths) // min(most, len(paths))] for i in range(min(most, len(paths)))]


def preprocessing_of(file: Path) -> PreprocessingFields:
    """Return the preprocessing of a model: that in export.json of an engine, or in the metadata of the file.

    Raises:
        OptionError: neither has it.
    """
    if suffix_of(file) == ".engine" and model_of(file).export.record_file.is_file():
        preprocessing = dict(model_of(file).export_record().preprocessing)
        if reads_texts(preprocessing):
            raise OptionError(f"{file} reads texts, and --end-to-end is of pictures; leave it out")
        return preprocessing
    try:
        stated = metadata(str(file)).get("preprocessing") if suffix_of(file) == ".onnx" else None
    except RunnerError as error:
        raise OptionError(str(error)) from error
    if stated is None:
        raise OptionError(
            f"{file} does not say how its pictures are preprocessed, which --end-to-end must know; "
            "give a model folder, or a file that `edgevit export` wrote"
        )
    return _READER.parse(stated, Preprocessing, f"{file}, preprocessing,").plain()
