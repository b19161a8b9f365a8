"""Texts about options and commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from edgevit.cli.config import CONFIG, FROM_FILE
from edgevit.cli.console import write
from edgevit.request import OUTPUT


def example_option(module: str, what: str) -> Any:
    """`--example` of a command, which prints the file EXAMPLE of a module and exits."""

    def show(is_on: bool) -> None:
        if is_on:
            write(import_module(module).EXAMPLE.read_text(encoding="utf-8").rstrip("\n"))
            raise typer.Exit

    text = f"Print an example {what} with every key."
    return typer.Option("--example", callback=show, is_eager=True, help=text, rich_help_panel=OUTPUT)


def kind_name(kind: type | tuple[str, ...]) -> str:
    """The kind of an option's value, in words."""
    if isinstance(kind, tuple):
        return ", ".join(kind)
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]


def repeated(context: typer.Context, command: str, /, **changed: Any) -> str:
    """The text of another command with the options of this one that it also has, and with `changed`."""
    command_object: Any = context.parent.command.commands[command]  # type: ignore[union-attr]  # typer's own group
    typed = {
        key: value
        for key, value in context.params.items()
        if key != CONFIG
        and (source := context.get_parameter_source(key)) is not None
        and source.name in ("COMMANDLINE", FROM_FILE)
    } | changed
    words = ["edgevit", command]
    for parameter in sorted(command_object.params, key=lambda p: p.param_type_name == "option"):
        value = typed.get(parameter.name)
        if value is None:
            continue
        values = value if isinstance(value, (list, tuple)) else (value,)
        if parameter.param_type_name == "argument":
            words += map(str, values)
        elif isinstance(value, bool):
            words += (parameter.opts if value else parameter.secondary_opts)[:1]
        else:
            for item in values:
                words += [parameter.opts[0], str(item)]
    return shlex.join(words)


def page_line(*paths: Path, gates: Sequence[str] = ()) -> str:
    """The command that makes a page of these models and runs with these gates."""
    judged = [word for gate in gates for word in ("--gate", gate)]
    return f"One page of it all: {shlex.join(['edgevit', 'report', *dict.fromkeys(map(str, paths)), *judged])}"


def among(folder: Path) -> Path:
    """The parent of a model's folder; the folder itself where its parent is the working directory."""
    return folder if folder.absolute().parent == Path.cwd() else folder.parent
