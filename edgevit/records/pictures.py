"""Read picture files of any mode as RGB with 8 bits per channel.

Gray of 16 bits is scaled from 65535, of 12 bits from 4095, and floats from 1: by the range of the format, not of the
picture, so that a dark picture stays dark. Pillow alone clips all of them at 255. An option can set another range, such
as 4095 for a sensor of 12 bits in a PNG of 16 bits.

A camera may store a rotated picture with an EXIF orientation. By default it is ignored, as by the loaders of timm and
torchvision with which bases are trained.
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
from typing import Any

from PIL import Image, UnidentifiedImageError

from edgevit.errors import DataError, OptionError
from edgevit.records.reading import AS_STORED, Reading

_BITS_PER_SAMPLE, _PHOTOMETRIC, _ORIENTATION = 258, 262, 274  # tags of TIFF, and of EXIF
_MAX_MEGAPIXELS = "EDGEVIT_MAX_MEGAPIXELS"  # the environment variable that allows larger pictures
DEEP_WHITE = 65535  # value of white in 16 bits
_ONE_COLOUR = 8  # largest difference of values, of 255, that nobody sees
# Inverse transforms by EXIF orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Errors of Pillow for invalid pictures; RuntimeError: of AVIF, DDS and BLP.
UNREADABLE = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded picture, 2 to 8; 1: upright, or EXIF is damaged."""
    with suppress(*UNREADABLE, LookupError, TypeError, struct.error):
        value = image.getexif().get(_ORIENTATION)
        return value if value in _UPRIGHT else 1
    return 1


def _is_deep(image: Image.Image) -> bool:
    """Whether Pillow would clip its values: mode I;16 of any byte order, I (32-bit integers) or F (floats)."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def eight_bit(image: Image.Image, value_range: float | None = None) -> Image.Image:
    """Scale a deep image to 8-bit gray; return any other unchanged.

    Raises:
        ValueError: the value of white is ambiguous; the message has the values and a hint.
    """
    if not _is_deep(image):
        return image
    import numpy as np

    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    low, high = float(values.min()), float(values.max())
    values_text = f"mode {image.mode} with values from {low:g} to {high:g}"
    advice = "convert it to 8-bit gray or RGB, or say what is white with --value-range"
    if tags.get(_PHOTOMETRIC) == 0:
        raise ValueError(f"{values_text}, in which 0 is white; convert it to 8-bit gray or RGB")
    white = value_range or _white_of(image)
    if not (low >= 0 and high <= white):  # not of NaN, either
        kind = "floats from 0 to" if image.mode == "F" else "0 to"
        raise ValueError(f"{values_text}, expected {kind} {white:g}; {advice}")
    if value_range is None and image.mode != "F" and 0 < high <= 255 < white:
        raise ValueError(f"{values_text}, which are black among 16 bits and may be meant as 8; {advice}")
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _white_of(image: Image.Image) -> float:
    """The value of white in the format of a deep image."""
    if image.mode == "F":
        return 1
    bits = tuple(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, ()))
    return 4095 if bits == (12,) else DEEP_WHITE


def highest_value(image: Image.Image) -> int | None:
    """The highest value of a loaded picture of 16 bits; None: another mode."""
    if not _is_deep(image) or image.mode == "F" or _white_of(image) != DEEP_WHITE:
        return None
    import numpy as np

    return int(np.asarray(image).max())


def _is_clear_palette(image: Image.Image) -> bool:
    return image.mode == "P" and "transparency" in image.info


def is_shape_of_transparency(image: Image.Image) -> bool:
    """Whether a loaded picture shows something by its transparency alone, which `to_rgb` drops: it has one colour."""
    if image.mode not in ("LA", "PA", "RGBA") and not _is_clear_palette(image):
        return False
    extrema: Any = image.convert("RGBA").getextrema()
    *colours, alpha = extrema
    return alpha[0] < alpha[1] and all(high - low <= _ONE_COLOUR for low, high in colours)


def to_rgb(image: Image.Image, reading: Reading = AS_STORED) -> Image.Image:
    """Convert a loaded picture of any mode to RGB.

    Raises:
        ValueError: as by `eight_bit`.
    """
    turned = orientation(image) if reading.exif == "apply" else 1
    image = eight_bit(image, reading.value_range)
    if turned != 1:
        image = image.transpose(_UPRIGHT[turned])
    if _is_clear_palette(image):
        image = image.convert("RGBA")  # the same colours; else Pillow may warn, in threads that share what is ignored
    return image if image.mode == "RGB" else image.convert("RGB")


def read_picture(path: str | PathLike[str], hint: str, reading: Reading = AS_STORED) -> Image.Image:
    """Read a picture file as RGB.

    Args:
        hint: what to try if it cannot be read, such as "remove or replace it".

    Raises:
        DataError: it is missing, corrupt, or not a picture.
    """
    with reading_picture(str(path), hint), open_picture(path) as image:
        image.load()
        return to_rgb(image, reading)


def open_picture(path: str | PathLike[str]) -> Image.Image:
    """Open a picture file with Pillow, which reads only its size and mode.

    Raises:
        OSError, SyntaxError, ValueError, RuntimeError, DecompressionBombError: one of UNREADABLE.
    """
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # opening a FIFO blocks
        raise ValueError("a pipe or a device, expected a file")
    if (limit := _pixel_limit()) is not None:
        Image.MAX_IMAGE_PIXELS = limit // 2  # Pillow warns above this, and raises at twice as many
    return Image.open(path)


def _pixel_limit() -> int | None:
    """The largest number of pixels of a picture; None: Pillow's default.

    Raises:
        OptionError: the environment variable is not a positive number.
    """
    if (text := os.environ.get(_MAX_MEGAPIXELS)) is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise OptionError(f"{_MAX_MEGAPIXELS}={text} is not a number of megapixels; try 1000")
    return int(value * 1e6)


@contextmanager
def reading_picture(name: str, hint: str) -> Iterator[None]:
    """Convert errors of Pillow to DataError.

    Raises:
        DataError: the picture is missing, corrupt, or not a picture.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid EXIF
            yield
    except UNREADABLE as error:
        raise DataError(f"cannot read {name}: {why_unreadable(error)}; {hint}") from error


def why_unreadable(error: Exception) -> str:
    """Describe the error of reading a picture, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, Image.DecompressionBombError) and (pixels := re.search(r"\((\d+) pixels", str(error))):
        millions = -(-int(pixels[1]) // 10**6)
        return (
            f"it has {millions} megapixels, which may be meant to fill the memory; to allow it, set the environment "
            f"variable {_MAX_MEGAPIXELS}={millions}"
        )
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (message.splitlines() or [type(error).__name__])[0]
