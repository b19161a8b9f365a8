"""`--set method.option=value`: from text to a method's Config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from edgevit.errors import OptionError, UnknownNameError

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def _convert(name: str, text: Any, kind: Any) -> Any:
    """Read one value as the field's type.

    Raises:
        OptionError, UnknownNameError: it is none.
    """
    if get_origin(kind) is Literal:
        if str(text) not in get_args(kind):
            raise UnknownNameError(f"value of {name}", str(text), get_args(kind))
        return str(text)
    if kind is bool:
        lowered = str(text).lower()
        if lowered not in _TRUE | _FALSE:
            raise OptionError(f"{name}={text} is neither true nor false")
        return lowered in _TRUE
    try:
        return kind(text)
    except (TypeError, ValueError):
        raise OptionError(f"{name}={text} is not of type {kind.__name__}") from None


def make_config(method: str, module: ModuleType, options: Mapping[str, Any]) -> Any:
    """Build a method's Config from its defaults and these options, by name or by text.

    Raises:
        UnknownNameError: no such option, or no such value of it.
        OptionError: a value of the wrong type.
    """
    hints = get_type_hints(module.Config)
    known = [f.name for f in fields(module.Config)]
    for name in options:
        if name not in known:
            raise UnknownNameError(f"option of method {method!r}", name, known)
    return module.Config(**{n: _convert(f"{method}.{n}", v, hints[n]) for n, v in options.items()})


def parse_assignments(method: str, assignments: Iterable[str]) -> dict[str, str]:
    """Turn `vulcan.rho=0.5` into {"rho": "0.5"}.

    Raises:
        OptionError: it is no assignment, or to another method.
    """
    options = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        owner, dot, option = name.strip().partition(".")
        if not equals or not dot:
            raise OptionError(f"--set {text} is not of the form method.option=value; try --set {method}.option=value")
        if owner != method:
            raise OptionError(f"--set {text} is an option of {owner!r}, but the method is {method!r}")
        options[option] = value.strip()
    return options
