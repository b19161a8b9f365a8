"""Options of a base that several commands take, from text to values."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable
from typing import Any

from edgevit.errors import OptionError


def model_arguments(assignments: Iterable[str] | None) -> dict[str, Any]:
    """Read `img_size=32`; a value that is no Python literal is text.

    Raises:
        OptionError: there is no equals sign.
    """
    arguments = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"--model-arg {text} is not of the form KEY=VALUE; try --model-arg img_size=32")
        try:
            arguments[name.strip()] = literal_eval(value.strip())
        except (ValueError, SyntaxError):
            arguments[name.strip()] = value.strip()
    return arguments


def _per_channel(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--{name} {text} is not a list of numbers; try --{name} 0.5,0.5,0.5") from None


def preprocessing_options(
    mean: str | None, std: str | None, crop_pct: float | None, interpolation: str | None
) -> dict[str, Any]:
    """Only what was given: the rest is timm's default for the base.

    Raises:
        OptionError: mean or std is no list of numbers.
    """
    given = {
        "mean": _per_channel("mean", mean) if mean else None,
        "std": _per_channel("std", std) if std else None,
        "crop_pct": crop_pct,
        "interpolation": interpolation,
    }
    return {name: value for name, value in given.items() if value is not None}
