from __future__ import annotations

import os
import sys
from errno import ENAMETOOLONG
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgevit.cli import (
    base,
    bench,
    board,
    cache,
    characterize,
    compare,
    cost,
    derive,
    derive_many,
    evaluate,
    export,
    fleet,
    ls,
    methods,
    package,
    profiles,
    report,
    show,
    supernet,
    sweep,
)
from edgevit.cli.command import Command
from edgevit.cli.config import UsageError
from edgevit.cli.console import say
from edgevit.cli.help import group_help
from edgevit.errors import EdgeVitError, Interrupted, is_out_of_memory
from edgevit.signals import sigterm_as_ctrl_c
from edgevit.text import shortened
from edgevit.version import written_by

# Commands in the order in which `edgevit --help` lists them.
_FIRST = (derive, sweep, export, bench, report, evaluate, compare, show, methods, board)
_MORE = (base, package, fleet, derive_many, supernet, cost, ls, profiles, characterize, cache)
COMMANDS = (*_FIRST, *_MORE)
_ALIASES = {"prove": characterize}  # not listed


def _name(module: Any) -> str:
    return str(module.__name__.rpartition(".")[2].replace("_", "-"))


class _Commands(TyperGroup):
    """The commands, in the order in which `edgevit --help` lists them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for module in COMMANDS:
            self.add_command(Command(_name(module), module.main))
        for name, module in _ALIASES.items():
            self.add_command(Command(name, module.main, hidden=True))

    def get_help(self, ctx: Any) -> str:
        return group_help(self, ctx, first=[_name(module) for module in _FIRST])


app = typer.Typer(cls=_Commands, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)

_LONGEST_MESSAGE, _LONGEST_REASON = 4000, 200  # characters: names of files and classes may have any length
_MORE_MEMORY = "make more memory available (`free -h`, `ulimit -v`)"
STOPPED = 130  # what a shell expects of a program that Ctrl-C ended; SIGTERM ends with the same


def _version(is_on: bool) -> None:
    if is_on:
        print(f"edgevit {written_by()}")
        raise typer.Exit


@app.callback()
def edgevit(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version of edgevit and exit.")
    ] = False,
) -> None:
    """Derive small class-specific Vision Transformers, export them, and measure them.

    `edgevit COMMAND --help` shows the options that most people need.
    """


def _run() -> int:
    """Run the command that was typed; return its exit code."""
    try:
        os.getcwd()
    except FileNotFoundError:
        say("error: the working folder was removed; change to another, such as with `cd ~`")
        return 1
    try:
        code = int(app(sys.argv[1:] or ["--help"], prog_name="edgevit", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        code = STOPPED
    except EdgeVitError as error:
        say(f"error: {shortened(str(error), _LONGEST_MESSAGE)}")
        return STOPPED if isinstance(error, Interrupted) else 1
    except UsageError as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
        command = context.command_path if context else "edgevit"
        say(f"error: {shortened(message, _LONGEST_MESSAGE)}; see {command} --help")
        return 1
    except OSError as error:
        if error.errno != ENAMETOOLONG:
            raise
        say(f"error: {error.strerror}: {str(error.filename)[:60]}...; give a shorter path")
        return 1
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "edgevit":
            raise  # a mistake of ours
        reason = shortened(str(error).partition("\n")[0], _LONGEST_REASON)
        because = f": {reason}" if reason else ""
        say(f"error: cannot import {error.name or 'a library'}{because}; {_MORE_MEMORY}, or install edgevit again")
        return 1
    except MemoryError as error:
        reason = shortened(str(error).partition("\n")[0], _LONGEST_REASON)
        say(f"error: out of memory{f': {reason}' if reason else ''}; {_MORE_MEMORY}")
        return 1
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = shortened(" ".join(str(error).split()), _LONGEST_REASON)
        say(f"error: out of memory: {reason}; give a smaller --batch-size or smaller images, or {_MORE_MEMORY}")
        return 1
    if code == STOPPED:
        say("stopped")
    return code


def main() -> None:
    # Read where huggingface_hub is imported, here and in workers. Each of its ten retries is four lines otherwise.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    with sigterm_as_ctrl_c():
        code = _run()
    sys.exit(code)
