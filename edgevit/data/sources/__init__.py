"""One file per kind of data on disk. Each defines:

    def matches(data: str) -> bool                tell whether it is of this kind
    def open_source(data: str) -> ImageSource     list it, without reading images
    def class_names(data: str) -> Sequence[str]   name its classes, without numpy and without reading images
    def open_images(data: str) -> ImageSource     optional: open images that need not be sorted by class
    def open_pictures(data: str) -> ImageSource   optional: the same, with the parts that the data has

Sources are tried in the order of their names; `folder` matches any directory and so comes last.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol

from edgevit.data.archives import SUFFIXES
from edgevit.errors import DataError
from edgevit.records.reading import AS_STORED, Reading

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES, MASKS = "images", "masks"  # folders of pictures, and of the maps that networks are to give for them
Part = Literal["train", "validation", "test"]
Reference = str | int  # what a source needs to read one image: a path, or an index


class ImageSource(Protocol):
    """Images by class, read one at a time."""

    # Names of the classes, in the order of the base's outputs if the base was trained on exactly these.
    class_names: Sequence[str]
    files: bool  # whether references are paths of files, which may be corrupt

    @property
    def parts(self) -> Collection[Part]:
        """The parts that the data has; others are split off the training part by seed."""

    def references(self, part: Part, class_name: str) -> list[Reference]:
        """List the images of a class, in one of its parts, in a stable order."""

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image:
        """Read one image as RGB; `reading` matters to files alone.

        Raises:
            DataError: it is corrupt, or not an image.
        """


def _matching(text: str) -> ModuleType | None:
    """Find the source that matches this data."""
    names = sorted(
        (module.name for module in pkgutil.iter_modules(__path__)), key=lambda name: (name == "folder", name)
    )
    for name in names:
        module = import_module(f"{__name__}.{name}")
        if module.matches(text):
            return module
    return None


def _kind(text: str) -> ModuleType:
    if module := _matching(text):
        return module
    fault = "is not a folder" if Path(text).exists() else "does not exist"
    raise DataError(
        f"data {text} {fault}; expected a folder of class folders (or train/ and val/ of them), an archive of such "
        f"({', '.join(SUFFIXES)}), Parquet files, a table of labels (.csv), a CIFAR folder as torchvision lays it out, "
        "IDX files as MNIST has them, or the name digits"
    )


def class_names(data: str | Path) -> Sequence[str]:
    """List the classes of image data by name or path, before anything heavy is imported.

    Raises:
        DataError: as `open_source` says.
    """
    names: Sequence[str] = _kind(str(data)).class_names(str(data))
    return names


def open_source(data: str | Path) -> ImageSource:
    """Open image data by name or path.

    Raises:
        DataError: there is no data, or no source matches it.
    """
    source: ImageSource = _kind(str(data)).open_source(str(data))
    return source


def refuse_missing_unlabelled(data: str | Path) -> ModuleType:
    """Find the source that matches unlabelled images.

    Raises:
        DataError: there is none.
    """
    kind = _matching(str(data))
    if kind is None:
        fault = "is not a folder" if Path(data).exists() else "does not exist"
        raise DataError(f"unlabelled images: {data} {fault}; expected a folder that has images, at any depth")
    return kind


def _open_by(function: str, data: str | Path) -> ImageSource:
    """Open data by a function of its kind, or by `open_source` where the kind has no such function."""
    kind = refuse_missing_unlabelled(data)
    source: ImageSource = getattr(kind, function, kind.open_source)(str(data))
    return source


def open_images(data: str | Path) -> ImageSource:
    """Open images that need not be sorted by class: those in a folder, at any depth, or another source.

    Raises:
        DataError: there is no data.
    """
    return _open_by("open_images", data)


def open_unlabelled(data: str | Path) -> tuple[ImageSource, list[Reference]]:
    """Open unlabelled images: those of `open_images`, of the training part.

    Raises:
        DataError: there is no data, or it has no images.
    """
    source = open_images(data)
    references = [r for name in source.class_names for r in source.references("train", name)]
    if not references:
        raise DataError(f"{data} holds no images; give a folder that has some, at any depth")
    return source, references


def has_masks(data: str | Path) -> bool:
    """Whether data is a folder of images and of target maps."""
    return (Path(data) / IMAGES).is_dir() and (Path(data) / MASKS).is_dir()


def open_pictures(data: str | Path) -> ImageSource:
    """Open images whose classes do not matter, in the parts that the data has: those in a folder are of one class.

    Raises:
        DataError: there is no data.
    """
    return _open_by("open_pictures", data)
