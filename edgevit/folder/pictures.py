"""Pictures as every part of edgevit sees them: RGB, 8 bits a channel, whatever the file holds."""

from __future__ import annotations

import warnings
from os import PathLike

from PIL import Image, UnidentifiedImageError

from edgevit.errors import DataError


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn a picture of any mode into RGB; the one place that says how."""
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
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")  # odd EXIF is no reason to stop
            image.load()
            return to_rgb(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else _line(error)
        raise DataError(f"cannot read {path}: {reason}; {hint}") from error


def _line(error: Exception) -> str:
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (told.splitlines() or [type(error).__name__])[0]
