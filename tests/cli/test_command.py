"""A command's options are made from the fields of its request, when they are first asked for."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from edgevit.cli.app import app
from edgevit.cli.command import Command, asks
from edgevit.errors import OptionError
from edgevit.request import DATA, OUTPUT, SHAPE, Nested, Option, assignments


@dataclass(frozen=True)
class Inner:
    pace: Annotated[float, Option("Pace.", SHAPE)] = 1.5


@dataclass(frozen=True, kw_only=True)
class Asking:
    name: Annotated[str, Option("Name.", None)]
    out: Annotated[Path, Option("Out.", OUTPUT)]
    on: Annotated[bool, Option("On.", DATA)] = True
    off: Annotated[bool, Option("Off.", DATA)] = False
    either: Annotated[bool | None, Option("Either.", DATA)] = None
    sizes: Annotated[tuple[int, ...], Option("Sizes.", SHAPE, name="--size", repeated=True)] = (1,)
    more: Annotated[dict[str, Any], Option("More.", SHAPE, repeated=True, read=assignments("--more", "a=1"))] = field(
        default_factory=dict
    )
    inner: Annotated[Inner, Nested()] = field(default_factory=Inner)
    now: Annotated[int, Option("Now.", DATA, short="-w", earlier="--was")] = 0


SEEN: list[Any] = []


@asks(request=f"{__name__}:Asking")
def main(
    context: typer.Context,
    request: Asking,
    *,
    loud: Annotated[bool, typer.Option("--loud", help="Loud.", rich_help_panel=DATA)] = False,
) -> None:
    """Do it."""
    SEEN.append((request, loud, context.command.name))


COMMAND = Command("do", main)


def run(*arguments: str) -> Any:
    SEEN.clear()
    COMMAND.main(list(arguments), standalone_mode=False)
    return SEEN[-1]


def test_what_is_typed_is_the_request_and_a_command_may_have_options_of_its_own() -> None:
    typed = ["n", "--out", "o", "--no-on", "--off", "--no-either", "--size", "3", "--size", "4", "--more", "a=2"]
    wanted = Asking(
        name="n", out=Path("o"), on=False, off=True, either=False, sizes=(3, 4), more={"a": 2}, inner=Inner(2.0)
    )
    assert run(*typed, "--pace", "2", "--loud") == (wanted, True, "do")
    assert run("n", "--out", "o") == (Asking(name="n", out=Path("o")), False, "do")


def test_options_are_listed_panel_by_panel_and_those_of_the_command_after_those_of_the_request() -> None:
    names = [parameter.opts[0] for parameter in COMMAND.params if parameter.opts[0] != "--help"]
    expected = [
        "name",
        "--on",
        "--off",
        "--either",
        "--now",
        "--loud",
        "--out",
        "--size",
        "--more",
        "--pace",
        "--config",
        "--help-all",
    ]
    assert names == expected


@pytest.mark.parametrize(("value", "told"), [("nan", "--pace nan is not a finite number"), ("inf", "--pace inf")])
def test_no_option_of_any_command_is_infinite(value: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        run("n", "--out", "o", "--pace", value)


@pytest.mark.parametrize(
    ("typed", "told"),
    [(("", "--out", "o"), "after do"), (("n", "--out", ""), "after --out"), (("n", "--out= "), "in --out= ")],
)
def test_an_empty_text_is_no_path_of_this_folder(typed: tuple[str, ...], told: str) -> None:
    with pytest.raises(OptionError, match=f"{told} there is an empty text; give a value, or set the shell variable"):
        run(*typed)


def test_help_of_all_commands_imports_no_request() -> None:
    program = (
        "import sys; from typer.main import get_command; from edgevit.cli.app import app\n"
        "names = {c.name: c.get_short_help_str(200) for c in get_command(app).commands.values()}\n"
        "assert names['derive'].startswith('Derive a small') and len(names) > 10\n"
        "sys.exit(bool({'pydantic', 'edgevit.derivation.request', 'edgevit.board.bench'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# What a command may declare by hand, with the reason: every other option is a field of a request.
SPOKEN = {"json", "quiet", "verbose"}  # how the terminal is spoken to, whatever is done
BY_HAND = {
    "derive-many": {"example"}, "fleet": {"example"},  # prints a plan to begin with, and ends
    "methods": {"method"}, "profiles": {"profile"}, "show": {"folder"},  # what is printed; nothing is done
    "ls": {"folder"},  # the same
    "cache": {"clear"},  # of this machine, and nothing that Python or a record would ask for
}  # fmt: skip


def test_every_option_of_every_command_is_declared_as_a_field_of_a_request() -> None:
    by_hand = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        main = command.main_function
        own = set(inspect.signature(main).parameters) - set(getattr(main, "asks", {})) - {"context"} - SPOKEN
        if own:
            by_hand[name] = own
    assert by_hand == BY_HAND


def test_an_option_has_one_name_within_a_command() -> None:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        names = [parameter.name for parameter in command.params]
        spellings = [text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)]
        assert len(set(names)) == len(names) and len(set(spellings)) == len(spellings), name


def test_the_name_that_an_option_once_had_is_still_taken_and_not_shown() -> None:
    assert run("n", "--out", "o", "--was", "3")[0].now == run("n", "--out", "o", "--was=3")[0].now == 3
    assert not any("--was" in parameter.opts for parameter in COMMAND.params)
