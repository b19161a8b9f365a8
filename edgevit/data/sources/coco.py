"""Images with objects as COCO has them: `instances.json` beside `images/`, or `annotations/instances_NAME.json`.

With several files NAME says the part, and its images are in `NAME/` or `images/NAME/`; `val2017` without a test part is
the test part. An object has a box [x, y, width, height] and a category, perhaps a mask of polygons or run lengths, and
`iscrowd` where it is a region of many. The images have no class: they are for a model that puts out no classes.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgevit.data.classes import listed
from edgevit.data.sources import Part, Reference
from edgevit.data.sources.folder import NAMES, Images
from edgevit.errors import DataError, UnknownNameError

ALONE, PREFIX = "instances.json", "instances_"
FOLDER = "annotations"
_FIX = "correct it, or write it again"


@dataclass(frozen=True)
class CocoObject:
    """One annotated object of an image."""

    category: int
    box: tuple[float, float, float, float]  # left, top, width and height, in pixels
    mask: Any = None  # mask in COCO's form: polygons or run lengths; None: the object has none
    crowd: bool = False


@dataclass(frozen=True)
class Annotations:
    """The content of one annotation file."""

    categories: Mapping[int, str]
    # Annotated objects by the path of the image, in the order of the file.
    objects: Mapping[str, tuple[CocoObject, ...]]
    dropped: int  # number of objects that were left out because they have no area


def _files(root: Path) -> list[Path]:
    if (root / ALONE).is_file():
        return [root / ALONE]
    return sorted((root / FOLDER).glob(f"{PREFIX}*.json"))


def _name(file: Path) -> str:
    return "" if file.name == ALONE else file.stem.removeprefix(PREFIX)


def _parts(files: Sequence[Path]) -> dict[Part, Path]:
    """The file of each part.

    Raises:
        DataError: several files, whose names say no parts, or the same one.
    """
    if len(files) == 1:
        return {"train": files[0]}
    words = {word: part for part, names in NAMES.items() for word in names}
    parts: dict[Part, Path] = {}
    for file in files:
        part = words.get(re.sub(r"[\d_-]+$", "", _name(file)).lower())
        if part is None or part in parts:
            membership = "of no part" if part is None else f"of the {part} part, as {parts[part].name} is"
            raise DataError(f"{file} is {membership}; name the files {PREFIX}train.json, {PREFIX}val.json and so on")
        parts[part] = file
    if "train" not in parts:
        raise DataError(f"{files[0].parent} has no {PREFIX}train.json among {len(files)} files; add it")
    if "validation" in parts and "test" not in parts:
        parts["test"] = parts.pop("validation")
    return parts


def _folder(file: Path, first: str) -> Path:
    """The folder of the images of a file, whose first image has this name."""
    root, name = (file.parent, "images") if file.name == ALONE else (file.parent.parent, _name(file))
    candidates = [root / name, root / "images" / name, root / "images", root]
    return next((folder for folder in candidates if (folder / first).is_file()), candidates[0])


@lru_cache(maxsize=8)
def _read(file: Path, changed_ns: int) -> Annotations:
    """Read one file.

    Raises:
        DataError: it is damaged, an image is missing, or an annotation is of no category or image.
    """
    try:
        content = json.loads(file.read_bytes())
        categories = {int(entry["id"]): str(entry["name"]) for entry in content["categories"]}
        names = {int(entry["id"]): str(entry["file_name"]) for entry in content["images"]}
        entries = [_entry(entry) for entry in content["annotations"]]
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; check its permissions") from error
    except KeyError as error:
        raise DataError(f"{file} has an entry without {error}, which COCO's format has; {_FIX}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is not in COCO's format ({str(error)[:100]}); {_FIX}") from error
    if len(set(names.values())) < len(content["images"]) or len(set(categories.values())) < len(content["categories"]):
        raise DataError(f"{file} lists an image or a category twice; {_FIX}")
    if not names:
        raise DataError(f"{file} lists no images; {_FIX}")
    folder = _folder(file, next(iter(names.values())))
    paths = {image: str(folder / name) for image, name in names.items()}
    if missing := [path for path in paths.values() if not os.path.isfile(path)]:
        raise DataError(
            f"{file} lists {len(paths)} images, and {len(missing)} of them are missing, such as {missing[0]}; add them"
        )
    objects: dict[str, list[CocoObject]] = {path: [] for path in paths.values()}
    dropped = 0
    for image, entry in entries:
        if image not in paths:
            raise DataError(f"{file} has an annotation of image {image}, which it does not list; {_FIX}")
        if entry.category not in categories:
            raise DataError(
                f"{file} has an annotation of category {entry.category} in {names[image]}, and lists "
                f"{', '.join(map(str, sorted(categories)[:8]))}{', ...' if len(categories) > 8 else ''}; {_FIX}"
            )
        if not all(map(math.isfinite, entry.box)) or min(entry.box[2:]) <= 0:
            dropped += 1
        else:
            objects[paths[image]].append(entry)
    return Annotations(categories, {path: tuple(of_image) for path, of_image in objects.items()}, dropped)


def _entry(entry: Mapping[str, Any]) -> tuple[int, CocoObject]:
    """The image of an annotation, and the annotation."""
    left, top, width, height = map(float, entry["bbox"])
    return int(entry["image_id"]), CocoObject(
        int(entry["category_id"]), (left, top, width, height), entry.get("segmentation") or None,
        bool(entry.get("iscrowd", 0)),
    )  # fmt: skip


class CocoImages(Images):
    """The images that the files list, by part, with their objects."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (name,) = self.class_names
        files = _parts(_files(root))
        self._by_part = {part: _read(file, file.stat().st_mtime_ns) for part, file in files.items()}
        self.parts = {part: {name: root} for part in files}
        first = next(iter(self._by_part.values()))
        self.categories = first.categories
        if strange := [part for part, read in self._by_part.items() if read.categories != self.categories]:
            raise DataError(f"{files[strange[0]]} has other categories than {files['train']}; {_FIX}")

    @property
    def dropped(self) -> int:
        """The number of objects without an area, which are left out."""
        return sum(read.dropped for read in self._by_part.values())

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return list(self._by_part[part].objects)

    def objects(self, reference: Reference) -> tuple[CocoObject, ...]:
        """What is annotated in an image."""
        return next(read.objects[str(reference)] for read in self._by_part.values() if str(reference) in read.objects)

    def chosen(self, classes: str | Path | Sequence[str | int] | None) -> dict[int, str]:
        """The categories of these names or ids; None: all.

        Raises:
            UnknownNameError: there is no such category.
        """
        entries = listed(classes, [*self.categories.values()])
        if entries is None:
            return dict(self.categories)
        by_text = {**{str(i): i for i in self.categories}, **{name: i for i, name in self.categories.items()}}
        for entry in entries:
            if entry not in by_text:
                raise UnknownNameError("class", entry, self.categories.values())
        return {by_text[entry]: self.categories[by_text[entry]] for entry in entries}


def matches(data: str) -> bool:
    return bool(_files(Path(data)))


def _unsorted(data: str) -> DataError:
    return DataError(
        f"{data} has boxes of objects, and no class of an image: give --output boxes with a detector of your own, or a "
        "folder of class folders"
    )


def class_names(data: str) -> tuple[str, ...]:
    raise _unsorted(data)


def open_source(data: str) -> CocoImages:
    raise _unsorted(data)


def open_images(data: str) -> Images:
    return Images(Path(data))


def open_pictures(data: str) -> CocoImages:
    return CocoImages(Path(data))
