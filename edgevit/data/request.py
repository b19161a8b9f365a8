"""The options of images and classes, checked by paths, names and listings alone, before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

from edgevit.data.classes import listed, refuse_part_of_a_name
from edgevit.data.sources import class_names, refuse_missing_unlabelled
from edgevit.errors import UnknownNameError
from edgevit.request import DATA, Option

DATA_KINDS = (
    "Images: a folder with a subfolder for each class, also below train/, val/ and test/ (without test/, val/ is the "
    "test part); an archive of such a folder (.zip, .tar, .tar.gz, ...); Parquet files as Hugging Face has them; a "
    ".csv table of file names and labels; a folder of CIFAR's or MNIST's files; or the word digits. Texts: .txt files "
    "in a subfolder for each class, or a .csv table of texts and labels. With --output boxes: a folder with COCO's "
    "instances.json."
)
_IMAGES = Option(DATA_KINDS, DATA, metavar="FOLDER", common=True)
Data = Annotated[str | Path, _IMAGES]
OptionalData = Annotated[str | Path | None, _IMAGES]
Classes = Annotated[
    str | Path | Sequence[str | int] | None,
    Option(
        "Target classes: names or indices, separated by commas, or a file of them.  [default: all classes of the data]",
        DATA,
        metavar="NAMES",
        common=True,
    ),
]
NewHead = Annotated[
    bool,
    Option(
        "Leave the base's classifier out, and fit one to the images: for classes that the base does not know.", DATA
    ),
]
HeadBlocks = Annotated[
    int,
    Option(
        "Number of last blocks of a ViT, such as 4, that a head which is fitted may read. It does where that is "
        "clearly more accurate; all blocks and tokens then stay.",
        DATA,
    ),
]
BaseClasses = Annotated[
    Path | str | Sequence[str] | None,
    Option(
        "File of the base's class names in the order of its outputs, one per line. A name that contains "
        "a comma is quoted; # starts a comment.  "
        "[default: ImageNet's order, or the alphabet's]",
        DATA,
    ),
]
SkipBadImages = Annotated[bool, Option("Skip images that cannot be read, and report their number.", DATA)]

GroupBy = Annotated[
    str | None,
    Option(
        "Keep groups of images together when splitting, such as the frames of a video: `folder` (each "
        "subfolder of a class folder), or a regular expression that matches the name of the group in the "
        "file name.  "
        "[default: split image by image]",
        DATA,
        metavar="PATTERN",
    ),
]

_SYNSET = re.compile(r"n\d{8}")  # ImageNet's names of classes, of which timm has the list
Augment = Literal["none", "crop", "flip", "views", "deit"]
AUGMENTS: tuple[Augment, ...] = ("none", "crop", "flip", "views", "deit")


def check_data(
    data: str | Path,
    classes: str | Path | Sequence[str | int] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    *,
    unlabelled: str | Path | None = None,
) -> None:
    """Refuse data that does not exist, and class names that neither the data nor the base's list has.

    What needs the base, such as which index is which class, is checked once the base is open.

    Raises:
        DataError: there is no data that can be read, a file of classes is missing or empty, or a name that has a
            comma has no quotes.
        UnknownNameError: no such class.
    """
    if unlabelled is not None:
        refuse_missing_unlabelled(unlabelled)
    names = class_names(data)
    of_base = listed(base_classes, names) or []
    _refuse_unknown(listed(classes, names) or [], names, of_base)


def check_pictures(data: str | Path, unlabelled: str | Path | None = None) -> None:
    """Refuse images without labels that do not exist.

    Raises:
        DataError: there are none.
    """
    for images in (data, unlabelled):
        if images is not None:
            refuse_missing_unlabelled(images)


def _refuse_unknown(entries: Sequence[str], names: Collection[str], of_base: Sequence[str]) -> None:
    if any(_SYNSET.fullmatch(name) for name in (*entries, *names)):
        return  # an entry may be a first lemma, which only timm knows, and timm imports torch
    for entry in entries:
        if not entry.isdecimal() and entry not in names and entry not in of_base:
            refuse_part_of_a_name(entry, of_base or names)
            raise UnknownNameError("class", entry, of_base or names)
