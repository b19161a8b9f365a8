"""`--config FILE`: the options of a command from a YAML file.

A key is the name of an option as it is typed, with dashes or underscores, or its name in Python. An argument may also
have the name that other commands have for it, such as `base` in a file for `evaluate`. Options of training and
preprocessing stand among the others. A value is the text that would be typed. An option that can be repeated takes a
list, and one of the form NAME=VALUE a mapping as well:

    base: deit_base_patch16_224
    classes: [robin, jay]
    model-arg: {img_size: 384}
    set: {forge.calibration_images: 256}
    lr: 2e-4
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from edgevit.errors import OptionError
from edgevit.request import nearest

CONFIG = "config"
FROM_FILE = "DEFAULT_MAP"  # what typer calls the source of such a value
UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # which typer has no name for


def take_config(context: typer.Context, file: Path | None) -> Path | None:
    """Take values from a file where the command line has none.

    Raises:
        OptionError: the file cannot be read, a key is no option of this command, or a value is not valid.
    """
    if file is None or context.resilient_parsing:
        return file
    from edgevit.records.documents import Reader

    parameters = _parameters(context.command)
    values: dict[str, Any] = {}
    content = Reader(OptionError, hint=f"see {context.command_path} --help").yaml(file, dict[str, Any])
    for key, value in content.items():
        parameter = parameters.get(_normal(key))
        if parameter is None:
            names = {_normal(parameter.opts[0]).replace("_", "-") for parameter in parameters.values()}
            raise OptionError(f"{file} has the unknown key {key!r}; {nearest(key.replace('_', '-'), sorted(names))}")
        if parameter.name in values:
            raise OptionError(f"{file} has {key!r} and the same by another name; leave one out")
        if value is not None:
            values[parameter.name] = _checked(value, parameter, context, f"{file} has {key}")
    context.default_map = {**(context.default_map or {}), **values}
    return file


def _parameters(command: Any) -> dict[str, Any]:
    """The parameters by all their names in a file."""
    named = [p for p in command.params if p.name not in (CONFIG, "help", "help_all")]
    parameters = {
        _normal(name): p for p in named for name in (*p.opts, p.name) if not name.startswith("-") or name[1] == "-"
    }
    return {
        **{also: parameters[field] for also, field in getattr(command, "names_elsewhere", {}).items()},
        **parameters,
    }


def _normal(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _checked(value: Any, parameter: Any, context: typer.Context, place: str) -> Any:
    """A value of the file as it would be typed."""
    typed = _typed(value, parameter, place)
    try:
        parameter.process_value(context, typed)
    except UsageError as error:
        reason = " ".join(str(getattr(error, "message", error)).split()).rstrip(".")
        reason = reason.replace("Input should be", "expected")  # which is what pydantic says in typer's name
        raise OptionError(f"{place} {value!r}: {reason}; see {context.command_path} --help") from None
    return typed


def _typed(value: Any, parameter: Any, place: str) -> Any:
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise OptionError(f"{place} {value!r}, expected true or false")
        return value
    if isinstance(value, dict):
        if not parameter.multiple:
            raise OptionError(f"{place} as a mapping, expected one value")
        return [f"{name}={item}" for name, item in value.items()]
    many = value if isinstance(value, list) else [value]
    for item in many:
        if isinstance(item, (bool, list, dict)) or item is None:
            raise OptionError(f"{place} {item!r}, expected a text or a number: put it in quotes")
    texts = [str(item) for item in many]
    if getattr(parameter, "multiple", False) or parameter.nargs == -1:
        return texts
    return ",".join(_quoted(text) for text in texts) if isinstance(value, list) else texts[0]


def _quoted(name: str) -> str:
    """A name among others that commas separate."""
    return '"' + name.replace('"', '""') + '"' if "," in name else name
