"""Settings of reading picture files, in the preprocessing of a model beside those of timm's transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Exif = Literal["ignore", "apply"]


@dataclass(frozen=True)
class Reading:
    """Further keys of a preprocessing, where they differ from the default."""

    exif: Exif = "ignore"  # whether to rotate a picture by its EXIF orientation
    value_range: float | None = None  # value of white in pictures of more than 8 bits; None: the format's own

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any]) -> Reading:
        return cls(**{name: preprocessing[name] for name in READING if name in preprocessing})


READING = ("exif", "value_range")
AS_STORED = Reading()


def reading_settings(preprocessing: Mapping[str, Any]) -> dict[str, object]:
    """The settings of reading files in a preprocessing, without default values."""
    defaults = vars(AS_STORED)
    return {name: preprocessing[name] for name in READING if preprocessing.get(name, defaults[name]) != defaults[name]}


def transform_settings(preprocessing: Mapping[str, Any]) -> dict[str, object]:
    """The other settings of a preprocessing, which are arguments of timm's `create_transform`."""
    return {name: value for name, value in preprocessing.items() if name not in READING}
