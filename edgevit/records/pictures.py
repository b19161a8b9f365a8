"""Pictures as every part of edgevit sees them: RGB, 8 bits a channel, whatever the file holds.

Gray of 16 bits is scaled from 65535, of 12 bits from 4095, and floats from 1: by the range of the format, never that of
one picture, so that a dark picture stays dark. Pillow alone would cut all of them off at 255. An option can give
another range, such as 4095 for a sensor of 12 bits whose values a PNG of 16 bits holds.

A camera may store a picture turned, and say so in EXIF. By default that is ignored, as timm's and torchvision's loaders
ignore it, by which bases are trained.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike

from PIL import Image, UnidentifiedImageError

from edgevit.errors import DataError, OptionError
from edgevit.records.reading import AS_STORED, Reading

BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION = 258, 262, 274  # tags of TIFF, and of EXIF
MAX_MEGAPIXELS = "EDGEVIT_MAX_MEGAPIXELS"  # the environment variable that allows larger pictures
DEEP_WHITE = 65535  # of 16 bits
# What puts a picture upright again, by its EXIF orientation.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# What Pillow raises of a file that is no picture or a spoilt one; RuntimeError of AVIF, DDS and BLP.
UNREADABLE = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded picture, 2 to 8; 1 for one that is upright, and where EXIF is damaged."""
    with suppress(*UNREADABLE, LookupError, TypeError, struct.error):
        value = image.getexif().get(ORIENTATION)
        return value if value in UPRIGHT else 1
    return 1


def is_deep(image: Image.Image) -> bool:
    """Whether Pillow would cut its values off: mode I;16 of any byte order, I (32-bit integers) or F (floats)."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def eight_bit(image: Image.Image, value_range: float | None = None) -> Image.Image:
    """Scale a deep image to 8-bit gray; any other is returned as it is.

    Raises:
        ValueError: its values do not tell what is white; the message says what was seen and what to do.
    """
    if not is_deep(image):
        return image
    import numpy as np

    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    low, high = float(values.min()), float(values.max())
    seen = f"mode {image.mode} with values from {low:g} to {high:g}"
    advice = "convert it to 8-bit gray or RGB, or say what is white with --value-range"
    if tags.get(PHOTOMETRIC) == 0:
        raise ValueError(f"{seen}, in which 0 is white; convert it to 8-bit gray or RGB")
    white = value_range or _white_of(image)
    if not (low >= 0 and high <= white):  # not of NaN, either
        kind = "floats from 0 to" if image.mode == "F" else "0 to"
        raise ValueError(f"{seen}, expected {kind} {white:g}; {advice}")
    if value_range is None and image.mode != "F" and 0 < high <= 255 < white:
        raise ValueError(f"{seen}, which are black among 16 bits and may be meant as 8; {advice}")
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _white_of(image: Image.Image) -> float:
    """The value of white in a deep image's format."""
    if image.mode == "F":
        return 1
    bits = tuple(getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, ()))
    return 4095 if bits == (12,) else DEEP_WHITE


def highest_value(image: Image.Image) -> int | None:
    """The highest value of a loaded picture of 16 bits or more; None for any other."""
    if not is_deep(image) or image.mode == "F" or _white_of(image) != DEEP_WHITE:
        return None
    import numpy as np

    return int(np.asarray(image).max())


def to_rgb(image: Image.Image, reading: Reading = AS_STORED) -> Image.Image:
    """Turn a loaded picture of any mode into RGB; the one place that says how.

    Raises:
        ValueError: as `eight_bit` says.
    """
    turned = orientation(image) if reading.exif == "apply" else 1
    image = eight_bit(image, reading.value_range)
    if turned != 1:
        image = image.transpose(UPRIGHT[turned])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a palette with transparency is no reason to stop
        return image if image.mode == "RGB" else image.convert("RGB")


def read_picture(path: str | PathLike[str], hint: str, reading: Reading = AS_STORED) -> Image.Image:
    """Read a picture's file as RGB.

    Args:
        hint: what to try where it cannot be read, such as "remove or replace it".

    Raises:
        DataError: it is missing, corrupt, or no picture.
    """
    with reading_picture(str(path), hint), open_picture(path) as image:
        image.load()
        return to_rgb(image, reading)


def open_picture(path: str | PathLike[str]) -> Image.Image:
    """Open a picture's file with Pillow, which reads no more of it than its size and mode.

    Raises:
        OSError, SyntaxError, ValueError, RuntimeError, DecompressionBombError: one of UNREADABLE.
    """
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # opening a FIFO waits for a writer
        raise ValueError("a pipe or a device, expected a file")
    if (limit := _pixel_limit()) is not None:
        Image.MAX_IMAGE_PIXELS = limit // 2  # Pillow warns above it, and refuses twice as many
    return Image.open(path)


def _pixel_limit() -> int | None:
    """The most pixels that a picture may have; None: as many as Pillow allows.

    Raises:
        OptionError: the environment variable is no number above 0.
    """
    if (text := os.environ.get(MAX_MEGAPIXELS)) is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise OptionError(f"{MAX_MEGAPIXELS}={text} is no number of megapixels; try 1000")
    return int(value * 1e6)


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
    if isinstance(error, Image.DecompressionBombError) and (pixels := re.search(r"\((\d+) pixels", str(error))):
        millions = -(-int(pixels[1]) // 10**6)
        return (
            f"it has {millions} megapixels, which may be meant to fill the memory; to allow it, set the environment "
            f"variable {MAX_MEGAPIXELS}={millions}"
        )
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (told.splitlines() or [type(error).__name__])[0]
