"""How the file of a picture is read: settings beside those of timm's transform, in the preprocessing of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Exif = Literal["ignore", "apply"]


@dataclass(frozen=True)
class Reading:
    """A preprocessing has these as further keys, where they are not the default."""

    exif: Exif = "ignore"  # whether a picture that is stored turned is put upright
    value_range: float | None = None  # the value of white in pictures deeper than 8 bits; None: the format's

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any]) -> Reading:
        return cls(**{name: preprocessing[name] for name in READING if name in preprocessing})


READING = ("exif", "value_range")
AS_STORED = Reading()


def reading_settings(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a preprocessing that says how files are read, without defaults."""
    defaults = vars(AS_STORED)
    return {name: preprocessing[name] for name in READING if preprocessing.get(name, defaults[name]) != defaults[name]}


def transform_settings(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a preprocessing that comes after reading: arguments of timm's `create_transform`."""
    return {name: value for name, value in preprocessing.items() if name not in READING}
