from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgevit import __version__
from edgevit.cli import bench, derive, evaluate, export, show
from edgevit.errors import EdgeVitError, Interrupted

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (derive, export, bench, evaluate, show):
    app.command(command.__name__.rpartition(".")[2])(command.main)


def _version(asked: bool) -> None:
    if asked:
        print(f"edgevit {__version__}")
        raise typer.Exit


@app.callback()
def edgevit(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Derive small class-specific Vision Transformers, export them, and measure them."""


def main() -> None:
    try:
        app()
    except EdgeVitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Interrupted) else 1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
