"""Pictures as every part of edgevit sees them: RGB, 8 bits a channel, whatever the file holds.

Gray of 16 bits is scaled from 65535, of 12 bits from 4095, and floats from 1: by the range of the format, never that of
one picture, so that a dark picture stays dark. Pillow alone would cut all of them off at 255.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from PIL import Image, UnidentifiedImageError

from edgevit.errors import DataError

BITS_PER_SAMPLE, PHOTOMETRIC = 258, 262  # tags of TIFF

# What Pillow raises of a file that is no picture or a spoilt one; RuntimeError of AVIF, DDS and BLP.
UNREADABLE = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)


def is_deep(image: Image.Image) -> bool:
    """Whether Pillow would cut its values off: mode I;16 of any byte order, I (32-bit integers) or F (floats)."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def eight_bit(image: Image.Image) -> Image.Image:
    """Scale a deep image to 8-bit gray; any other is returned as it is.

    Raises:
        ValueError: its values do not tell what is white; the message says what was seen and what to convert to.
    """
    if not is_deep(image):
        return image
    import numpy as np

    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    low, high = float(values.min()), float(values.max())
    seen = f"mode {image.mode} with values from {low:g} to {high:g}"
    advice = "convert it to 8-bit gray or RGB"
    if tags.get(PHOTOMETRIC) == 0:
        raise ValueError(f"{seen}, in which 0 is white; {advice}")
    if image.mode == "F":
        if not (low >= 0 and high <= 1):  # not of NaN, either
            raise ValueError(f"{seen}, expected floats from 0 to 1; {advice}")
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    white = 4095 if tuple(tags.get(BITS_PER_SAMPLE, ())) == (12,) else 65535
    if not (low >= 0 and high <= white):
        raise ValueError(f"{seen}, expected 0 to {white}; {advice}")
    if 0 < high <= 255 < white:
        raise ValueError(f"{seen}, which are black among 16 bits and may be meant as 8; {advice}")
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn a picture of any mode into RGB; the one place that says how.

    Raises:
        ValueError: as `eight_bit` says.
    """
    image = eight_bit(image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a palette with transparency is no reason to stop
        return image if image.mode == "RGB" else image.convert("RGB")


def read_picture(path: str | PathLike[str], hint: str) -> Image.Image:
    """Read a picture's file as RGB.

    Args:
        hint: what to try where it cannot be read, such as "remove or replace it".

    Raises:
        DataError: it is missing, corrupt, or no picture.
    """
    with reading_picture(str(path), hint), open_picture(path) as image:
        image.load()
        return to_rgb(image)


def open_picture(path: str | PathLike[str]) -> Image.Image:
    """Open a picture's file with Pillow, which reads no more of it than its size and mode.

    Raises:
        OSError, SyntaxError, ValueError, RuntimeError, DecompressionBombError: one of UNREADABLE.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a FIFO would wait for whoever writes to it
        raise ValueError("a folder, a pipe or a device, expected a file")
    return Image.open(path)


@contextmanager
def reading_picture(what: str, hint: str) -> Iterator[None]:
    """Turn what Pillow raises of a picture into one line.

    Raises:
        DataError: it is missing, corrupt, or no picture.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd EXIF is no reason to stop
            yield
    except UNREADABLE as error:
        raise DataError(f"cannot read {what}: {why_unreadable(error)}; {hint}") from error


def why_unreadable(error: Exception) -> str:
    """What is wrong with a picture, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (told.splitlines() or [type(error).__name__])[0]
