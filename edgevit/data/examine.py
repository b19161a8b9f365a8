"""Check every image file before the work starts: find unreadable ones, and warn of unusual ones."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from edgevit.data.sources import Reference
from edgevit.errors import DataError
from edgevit.progress import Progress
from edgevit.records.pictures import (
    DEEP_WHITE,
    UNREADABLE,
    eight_bit,
    highest_value,
    is_shape_of_transparency,
    open_picture,
    orientation,
    why_unreadable,
)
from edgevit.records.reading import Reading

FEW = 3  # number of files that a message names


@dataclass(frozen=True)
class FileFacts:
    """Facts of one image file."""

    fault: str | None = None  # why it cannot be read; None: it can
    turned: bool = False  # whether EXIF says that it is stored turned
    shapeless: bool = False  # whether it has one colour once its transparency is dropped
    highest: int | None = None  # highest value of a picture of 16 bits; None: the picture has another depth


def examine(path: str, reading: Reading) -> FileFacts:
    """Decode an image at the smallest scale that its format allows, to find faults, rotation and bit depth."""
    try:
        with open_picture(path) as image:
            image.draft("RGB", (16, 16))  # JPEG only: an eighth of the work, and still every byte is read
            image.load()
            eight_bit(image, reading.value_range)
            return FileFacts(
                turned=orientation(image) != 1,
                shapeless=is_shape_of_transparency(image),
                highest=highest_value(image),
            )
    except UNREADABLE as error:
        return FileFacts(why_unreadable(error))


def find_unreadable(references: list[Reference], skip: bool, progress: Progress, reading: Reading) -> set[Reference]:
    """Find the images that cannot be read, before the work starts, and warn of unusual ones.

    Raises:
        DataError: some cannot be read, and `skip` is false; the message counts them and names the first few.
    """
    bad: dict[Reference, str] = {}
    turned, shapeless, highest = 0, list[str](), list[int]()
    with (
        progress.stage("check images", len(references), "image") as stage,
        warnings.catch_warnings(),
        ThreadPoolExecutor(4) as pool,
    ):
        warnings.simplefilter("ignore")  # not in `examine`, since all threads share the filters
        paths = map(str, references)
        facts_of_files = pool.map(lambda path: examine(path, reading), paths)
        for i, (reference, facts) in enumerate(zip(references, facts_of_files, strict=True)):
            if facts.fault is not None:
                bad[reference] = facts.fault
            turned += facts.turned
            shapeless += [str(reference)] * facts.shapeless
            highest += [] if facts.highest is None else [facts.highest]
            stage.update(i + 1)
    if bad and not skip:
        raise DataError(f"{_unreadable(bad, len(references))}, or leave such files out with --skip-bad-images")
    if shapeless:
        progress.warn(
            f"{len(shapeless)} of {len(references)} images, such as {shapeless[0]}, are one colour once their "
            "transparency is dropped, as timm and torchvision do, too; put them on a background, such as by "
            "ImageMagick's `mogrify -background white -alpha remove -alpha off FILES`, which overwrites them"
        )
    _warn_of_odd_files(len(references), turned, highest, reading, progress)
    return {*bad}


def _unreadable(bad: Mapping[Reference, str], images: int) -> str:
    """Describe which files cannot be read, and what to do."""
    if len(bad) == 1:
        ((file, fault),) = bad.items()
        return f"cannot read {file}: {fault}; remove or replace it"
    files = ", ".join(f"{file} ({fault})" for file, fault in islice(bad.items(), FEW))
    more = f" and {len(bad) - FEW} more" if len(bad) > FEW else ""
    return f"cannot read {len(bad)} of {images} images: {files}{more}; remove or replace them"


def _warn_of_odd_files(images: int, turned: int, highest: Sequence[int], reading: Reading, progress: Progress) -> None:
    if turned:
        message = f"{turned} of {images} images {'is' if turned == 1 else 'are'} stored turned, as EXIF says"
        if reading.exif == "apply":
            progress.note(f"{message}, and put upright")
        else:
            progress.warn(
                f"{message}, and read as stored, as timm and torchvision read them; if the base was trained with "
                "upright images, give --exif apply"
            )
    if highest and reading.value_range is None and 0 < max(highest) <= DEEP_WHITE // 4:
        white = 2 ** max(highest).bit_length() - 1
        progress.warn(
            f"{len(highest)} of {images} images have 16 bits and no value above {max(highest)} of {DEEP_WHITE}, so "
            f"that they are nearly black; if {white} is white, give --value-range {white}"
        )


def image_sha256(path: str) -> bytes:
    """Hash a file's bytes; a file is read again only if its size, time or inode changed.

    Raises:
        OSError: it cannot be read.
    """
    status = os.stat(path)
    return _sha256(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=2**21)
def _sha256(path: str, size: int, changed_ns: int, inode: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def copies(files: Sequence[Reference], others: Sequence[Reference]) -> list[Reference]:
    """Find those of `files` that `others` has byte for byte; of `others`, only files of the same sizes are read."""
    sizes = {os.stat(str(file)).st_size for file in files}
    hashes = {image_sha256(str(path)) for path in others if _size(str(path)) in sizes}
    return [file for file in files if hashes and image_sha256(str(file)) in hashes]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # a link to nothing, of a part that is not read
        return -1
