"""`--config FILE`: the options of a command from a YAML file.

A key is the name of an option as it is typed, with dashes or underscores, or the name that Python has for it; what is
given by its place alone may have the name that other commands have for it, such as `base` in one for `evaluate`. Those
of training and preprocessing stand among the others, as on the command line. A value is what would be typed. An option
that lists several takes a list, and one of the form NAME=VALUE a mapping, too:

    base: deit_base_patch16_224
    classes: [robin, jay]
    model-arg: {img_size: 384}
    set: {forge.ridge: 0.001}
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
    """Let the values of a file stand where the command line has none.

    Raises:
        OptionError: it cannot be read, has a key that is no option of this command, or a value that this one cannot be.
    """
    if file is None or context.resilient_parsing:
        return file
    from edgevit.records.documents import Reader

    known = _known(context.command)
    values: dict[str, Any] = {}
    told = Reader(OptionError, hint=f"see {context.command_path} --help").yaml(file, dict[str, Any])
    for key, value in told.items():
        parameter = known.get(_normal(key))
        if parameter is None:
            names = {_normal(parameter.opts[0]).replace("_", "-") for parameter in known.values()}
            raise OptionError(f"{file} has the unknown key {key!r}; {nearest(key.replace('_', '-'), sorted(names))}")
        if parameter.name in values:
            raise OptionError(f"{file} has {key!r} and the same by another name; leave one out")
        if value is not None:
            values[parameter.name] = _checked(value, parameter, context, f"{file} has {key}")
    context.default_map = {**(context.default_map or {}), **values}
    return file


def _known(command: Any) -> dict[str, Any]:
    """The parameter that a key means, by all names that it may have."""
    named = [p for p in command.params if p.name not in (CONFIG, "help")]
    known = {
        _normal(name): p for p in named for name in (*p.opts, p.name) if not name.startswith("-") or name[1] == "-"
    }
    return {**{also: known[field] for also, field in getattr(command, "names_elsewhere", {}).items()}, **known}


def _normal(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _checked(value: Any, parameter: Any, context: typer.Context, told: str) -> Any:
    """What stands in the file, as it would be typed."""
    typed = _typed(value, parameter, told)
    try:
        parameter.process_value(context, typed)
    except UsageError as error:
        why = " ".join(str(getattr(error, "message", error)).split()).rstrip(".")
        why = why.replace("Input should be", "expected")  # which is what pydantic says in typer's name
        raise OptionError(f"{told} {value!r}: {why}; see {context.command_path} --help") from None
    return typed


def _typed(value: Any, parameter: Any, told: str) -> Any:
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise OptionError(f"{told} {value!r}, expected true or false")
        return value
    if isinstance(value, dict):
        if not parameter.multiple:
            raise OptionError(f"{told} as a mapping, expected one value")
        return [f"{name}={one}" for name, one in value.items()]
    many = value if isinstance(value, list) else [value]
    for one in many:
        if isinstance(one, (bool, list, dict)) or one is None:
            raise OptionError(f"{told} {one!r}, expected a text or a number: put it in quotes")
    texts = [str(one) for one in many]
    if getattr(parameter, "multiple", False) or parameter.nargs == -1:
        return texts
    return ",".join(_quoted(text) for text in texts) if isinstance(value, list) else texts[0]


def _quoted(name: str) -> str:
    """A name among others that commas separate."""
    return '"' + name.replace('"', '""') + '"' if "," in name else name
