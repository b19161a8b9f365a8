"""A folder of class folders, or `train/` and `val/` of them, as ImageNet is usually unpacked, or `test/`, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from edgevit.data.sources import Part, Reference
from edgevit.errors import DataError
from edgevit.folder.pictures import read_picture

NAMES: dict[Part, tuple[str, ...]] = {  # that the folders of parts go by
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
LITTER = {"thumbs.db", "ehthumbs.db", "desktop.ini"}  # what Windows puts among images; that of others is hidden


def _class_folders(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            found[entry.name] = entry
        elif not _is_litter(entry.name) and not entry.exists():
            raise DataError(f"{entry} is a link to nothing, and may be a class; mend it, or remove it")
    for name in found:
        if not _is_text(name):  # class names stand in JSON, tables and metadata
            raise DataError(f"the name of the folder {os.fsencode(name)!r} in {folder} is no UTF-8; rename it")
    return found


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _files(folder: Path) -> list[Reference]:
    return [str(f) for f in sorted(_below(folder))]


def _below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """The files at any depth, but for litter; folders may be links, of which one that leads back to `above` ends."""
    if (here := folder.resolve()) in above:
        return
    for entry in folder.iterdir():
        if _is_litter(entry.name):
            continue
        if entry.is_dir():
            yield from _below(entry, above | {here})
        elif entry.is_file() or not entry.exists():  # a link to nothing, which whoever reads it is told of
            yield entry


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in LITTER


class Images:
    """Every file below a folder, as if of one class."""

    files = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.class_names: tuple[str, ...] = (root.name,)
        self.parts: dict[Part, dict[str, Path]] = {"train": {root.name: root}}

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return _files(self.root)

    def read(self, reference: Reference) -> Image.Image:
        return read_picture(str(reference), "remove or replace it, or leave such files out with --skip-bad-images")


class Folder(Images):
    """Class folders."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        folders = {name.lower(): path for name, path in _class_folders(root).items()}  # of train and Train the former
        train, validation, test = (
            next((folders[name] for name in names if name in folders), None) for names in NAMES.values()
        )
        if validation and not (test and _class_folders(test)):  # as in ImageNet: its test/ has images without a class
            validation, test = None, validation
        if test is None and train is not None and train.name == "train":  # with a capital it may be a class
            raise DataError(f"{root} has train/ but no val/; add val/, or give {train} itself to have one split off")
        self.folders: dict[Part, Path] = {"train": root}
        if train is not None and test is not None:
            found: dict[Part, Path | None] = {"train": train, "validation": validation, "test": test}
            self.folders = {part: path for part, path in found.items() if path is not None}
        self.parts = {part: _class_folders(path) for part, path in self.folders.items()}
        self.class_names = tuple(self.parts["train"])
        if not self.class_names:
            raise DataError(f"{root} holds no class folders; expected one folder of images per class")

    def references(self, part: Part, class_name: str) -> list[Reference]:
        folder = self.parts[part].get(class_name)
        if folder is None:
            raise DataError(
                f"class {class_name!r} has no folder in {self.folders[part]}; add it, or leave the class out"
            )
        return _files(folder)


def matches(data: str) -> bool:
    return Path(data).is_dir()


def class_names(data: str) -> tuple[str, ...]:
    return Folder(Path(data)).class_names


def open_source(data: str) -> Folder:
    return Folder(Path(data))


def open_images(data: str) -> Images:
    return Images(Path(data))
