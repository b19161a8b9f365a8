"""A folder of class folders, or of `train/` and `val/` (and `test/`) with class folders, as ImageNet usually is.

torchvision's ImageFolder skips unreadable folders and stray files, follows links between classes, and finds a damaged
file only when it is read; here each of these is a one-line error before the work starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

from PIL import Image

from edgevit.data.sources import IMAGES, Part, Reference, has_masks
from edgevit.errors import DataError
from edgevit.records.class_names import class_name as composed
from edgevit.records.pictures import read_picture
from edgevit.records.reading import AS_STORED, Reading

NAMES: dict[Part, tuple[str, ...]] = {  # folder names of each part
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
# Files and folders that are never images or classes, in lower case; names that begin with a dot are ignored, too.
_LITTER = frozenset({
    "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini", "zbthumbnail.info", "icon\r",
    "@eadir", "#recycle", "#snapshot", "@tmp", "@sharebin",  # Synology
    "@recycle", "@recently-snapshot", "@__thumb", "@upload_cache",  # QNAP
    "__macosx", "network trash folder", "temporary items",  # macOS
    "$recycle.bin", "recycler", "system volume information",  # Windows
    "lost+found", "__pycache__",
})  # fmt: skip
# Extensions of annotations and lists, which many data sets have beside images.
ANNOTATIONS = frozenset({
    ".txt", ".xml", ".json", ".jsonl", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".ini", ".md", ".html", ".log",
})  # fmt: skip


def is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


def list_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """List a folder by name, without litter.

    Raises:
        DataError: it cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not is_litter(e.name)), key=lambda entry: entry.name)
    except OSError as error:
        text = str(folder)
        raise DataError(
            f"cannot list {text if len(text) < 200 else text[:200] + '...'}: {error.strerror}; check its permissions, "
            "or move it out of the data"
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which is reported when it is read as an image
        return False


def _class_folders(folder: Path) -> dict[str, Path]:
    """Map class names to folders, in torchvision's order.

    Raises:
        DataError: a name is not UTF-8, a folder is a broken link, or two names are equal in two Unicode forms.
    """
    folders: dict[str, Path] = {}
    for entry in list_entries(folder):
        path, name = folder / entry.name, composed(entry.name)
        if not is_folder(entry):
            if not path.exists():
                raise DataError(f"{path} is a link to nothing, and may be a class; repair or remove it")
            continue
        if not _is_text(name):  # class names are written to JSON, tables and metadata
            raise DataError(f"the name of the folder {os.fsencode(entry.name)!r} in {folder} is no UTF-8; rename it")
        if name in folders:
            forms = " and ".join(map(ascii, (folders[name].name, entry.name)))
            raise DataError(
                f"{folder} has two folders of the class {name!r}, in two Unicode forms ({forms}); move the images of "
                "one into the other"
            )
        folders[name] = path
    return folders


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and all folders above it."""
    yield path
    while (above := os.path.dirname(path)) != path:
        yield (path := above)


def _part_folders(root: Path) -> tuple[Path | None, Path | None, Path | None]:
    """The folders of the training, validation and test part, as far as they are there."""
    # If both Train and train exist, the latter counts.
    folders = {name.lower(): path for name, path in _class_folders(root).items()}
    train, validation, test = (next((folders[n] for n in names if n in folders), None) for names in NAMES.values())
    return train, validation, test


class Images:
    """Every file in a folder, at any depth, as one class."""

    files = True
    is_sorted = False  # whether there are classes: else the one class is named after the folder

    def __init__(self, root: Path) -> None:
        self.root = root
        self.class_names: tuple[str, ...] = (root.name,)
        self.parts: dict[Part, dict[str, Path]] = {"train": {root.name: root}}
        self.annotations: set[str] = set()  # files that `references` skipped

    @cached_property
    def _places(self) -> tuple[dict[str, set[str]], set[str]]:
        """The classes of each class folder by its resolved path, and all folders above class folders."""
        classes: dict[str, set[str]] = {}
        for name, folder in chain.from_iterable(folders.items() for folders in self.parts.values()):
            classes.setdefault(os.path.realpath(folder), set()).add(name)
        return classes, {above for path in classes for above in _upwards(os.path.dirname(path))}

    def _refuse_shared(self, link: str, name: str) -> None:
        """Refuse a link, in a class folder or in place of one, to images of other classes.

        Raises:
            DataError: it leads into another class folder, or to a folder above class folders.
        """
        classes, above = self._places
        target = os.path.realpath(link)
        others = [owner for path in _upwards(target) for owner in sorted(classes.get(path, set())) if owner != name]
        if target in above or others:
            kind = f"of the class {others[0]!r}" if others else "that class folders are in"
            raise DataError(
                f"{link} is a link to {target}, a folder {kind}: its images would count as {name!r}; remove the link"
            )

    def _files(self, folder: Path, name: str) -> list[Reference]:
        """List the files of a class at any depth; each folder once, even if several links lead to it.

        Raises:
            DataError: a folder cannot be listed, or a link leads to images of other classes.
        """
        if folder.is_symlink():
            self._refuse_shared(str(folder), name)
        files: list[str] = []
        pending, listed = [str(folder)], set[tuple[int, int]]()
        while pending:  # no recursion: folders may be deeper than Python's stack
            current = pending.pop()
            entries, status = list_entries(current), os.stat(current)
            if (identity := (status.st_dev, status.st_ino)) in listed:
                continue
            listed.add(identity)
            for entry in entries:
                if entry.is_symlink():
                    self._refuse_shared(entry.path, name)
                if is_folder(entry):
                    pending.append(entry.path)
                elif os.path.splitext(entry.name)[1].lower() in ANNOTATIONS:
                    self.annotations.add(entry.path)
                else:  # a file that is not an image is an error when it is read
                    files.append(entry.path)
        return [*sorted(files, key=lambda file: file.split(os.sep))]

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return self._files(self.parts[part][class_name], class_name)

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        hint = "remove or replace it, or leave such files out with --skip-bad-images"
        return read_picture(str(reference), hint, reading)


class Folder(Images):
    """Class folders."""

    is_sorted = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        train, validation, test = _part_folders(root)
        if validation and not (test and _class_folders(test)):  # as in ImageNet, whose test/ has images without classes
            validation, test = None, validation
        if test is None and train is not None and train.name == "train":  # with a capital it may be a class
            raise DataError(f"{root} has train/ but no val/; add val/, or give {train} itself to have one split off")
        self.folders: dict[Part, Path] = {"train": root}
        if train is not None and test is not None:
            parts: dict[Part, Path | None] = {"train": train, "validation": validation, "test": test}
            self.folders = {part: path for part, path in parts.items() if path is not None}
        self.parts = {part: _class_folders(path) for part, path in self.folders.items()}
        self.class_names = tuple(self.parts["train"])
        if not self.class_names:
            raise DataError(f"{root} holds no class folders; expected one folder of images per class")

    def untrained(self) -> list[Path]:
        """List class folders of other parts whose class has no folder in the training part."""
        train = self.parts["train"]
        return [path for folders in self.parts.values() for name, path in folders.items() if name not in train]

    def references(self, part: Part, class_name: str) -> list[Reference]:
        folder = self.parts[part].get(class_name)
        if folder is None:
            raise DataError(
                f"class {class_name!r} has no folder in {self.folders[part]}; add it, or leave the class out"
            )
        return self._files(folder, class_name)


def matches(data: str) -> bool:
    return Path(data).is_dir()


def class_names(data: str) -> tuple[str, ...]:
    return Folder(Path(data)).class_names


def open_source(data: str) -> Folder:
    return Folder(Path(data))


def open_images(data: str) -> Images:
    """Images at any depth; masks are none."""
    return Images(Path(data) / IMAGES if has_masks(data) else Path(data))


def open_pictures(data: str) -> Images:
    """Images at any depth; those below `train/`, `val/` and `test/` are in these parts."""
    images = open_images(data)
    train, validation, test = _part_folders(images.root)
    if validation and not test:
        validation, test = None, validation
    if train and test:
        (name,) = images.class_names
        folders: dict[Part, Path | None] = {"train": train, "validation": validation, "test": test}
        images.parts = {part: {name: path} for part, path in folders.items() if path is not None}
    return images
