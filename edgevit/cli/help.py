"""Plain help texts. `--help` shows the options that most people need, and `--help-all` shows every option.

An option is on the first screen if its declaration says `common=True`. A command of few options shows all of them.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import typer

HELP = "Configuration and help"  # the last panel
HELP_ALL = "help_all"  # option that shows all options; it is hidden where --help has every option
_FIRST_SCREEN = 20  # options
_MOST_COLUMNS, _LEFT_COLUMNS = 120, 34  # widths of the whole text, and of an option's name before its help begins
_COMPLETE = "edgevit.help_all"  # key in the context: if it is set, all options are shown
_Row = tuple[str, str]  # an option or command, and its help


def show_all(context: typer.Context, is_on: bool) -> None:
    """Print the help with every option, and exit."""
    if is_on and not context.resilient_parsing:
        context.meta[_COMPLETE] = True
        print(context.get_help())
        raise typer.Exit


def command_help(command: Any, context: typer.Context, common: Iterable[str]) -> str:
    """The help of one command.

    Args:
        common: the names of the parameters on the first screen.
    """
    options = [p for p in command.get_params(context) if p.param_type_name == "option" and not p.hidden]
    if len(options) <= _FIRST_SCREEN:
        options = [p for p in options if p.name != HELP_ALL]
    arguments = [p for p in command.get_params(context) if p.param_type_name == "argument"]
    shown = set(common)
    is_complete = context.meta.get(_COMPLETE, False) or len(options) <= _FIRST_SCREEN
    sections = [("Arguments", arguments)]
    if is_complete:
        panels = dict.fromkeys(p.rich_help_panel or HELP for p in options)
        sections += [(panel, [p for p in options if (p.rich_help_panel or HELP) == panel]) for panel in panels]
    else:
        sections.append(("Options", [p for p in options if p.name in shown]))
    blocks = [
        _section(title, [_record(p, context) for p in parameters]) for title, parameters in sections if parameters
    ]
    if not is_complete:
        hidden = len(options) - len(sections[-1][1])
        blocks.append(f"{hidden} more options: {context.command_path} --help-all\n")
    return "\n".join([_opening(command, context), *blocks])


def group_help(group: Any, context: typer.Context, first: Sequence[str]) -> str:
    """The help of edgevit itself: the commands that most people need, then the others."""
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    rows = {c.name: (c.name, c.get_short_help_str(limit=1000)) for c in commands if not c.hidden}
    options = [p for p in group.get_params(context) if p.param_type_name == "option"]
    return "\n".join(
        [
            _opening(group, context),
            _section("Commands", [rows[name] for name in first]),
            _section("More commands", [row for name, row in rows.items() if name not in first]),
            _section("Options", [_record(p, context) for p in options]),
        ]
    )


def _opening(command: Any, context: typer.Context) -> str:
    arguments = [_usage(p) for p in command.get_params(context) if p.param_type_name == "argument"]
    names = arguments if context.parent is not None else ["COMMAND"]
    usage = " ".join(["Usage:", context.command_path, "[OPTIONS]", *names])
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    return "\n\n".join(_wrapped(part) for part in (usage, *paragraphs)) + "\n"


def _usage(argument: Any) -> str:
    name = _names(argument) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _record(parameter: Any, context: typer.Context) -> _Row:
    name, text = parameter.get_help_record(context)
    return _names(parameter) or name, text


def _names(parameter: Any) -> str:
    """The names of a parameter and the word for its value."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]")
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def _section(title: str, rows: Sequence[_Row]) -> str:
    column = min(max(len(name) for name, _ in rows), _LEFT_COLUMNS) + 4
    lines = [f"{title}:"]
    for name, text in rows:
        help_lines = _wrapped(text, column).splitlines() or [""]
        if len(name) + 4 > column:
            lines += [f"  {name}", *help_lines]
        else:
            lines += [f"  {name}".ljust(column) + help_lines[0].lstrip(), *help_lines[1:]]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: int = 0) -> str:
    columns = max(min(shutil.get_terminal_size().columns, _MOST_COLUMNS), 40)
    margin = " " * indent
    return textwrap.fill(
        text, columns, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False
    )
