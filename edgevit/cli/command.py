"""A command of `edgevit`: its options are made from the fields of a request, and `--config FILE` may give any of them.

    @asks(request="edgevit.derivation.request:DeriveRequest")
    def main(request: DeriveRequest, *, json: JsonFlag = False) -> None:

is a command with every option that DeriveRequest declares, followed by those of `main`. A request is imported when its
command is used, so that `edgevit --help` starts quickly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from edgevit.cli.config import CONFIG, take_config
from edgevit.cli.help import HELP, HELP_ALL, command_help, show_all
from edgevit.errors import OptionError
from edgevit.numbers import FINITE, WORD, check_number
from edgevit.request import OUTPUT, PANELS, RequestOption, options_of, request_from

Main = Callable[..., Any]
_COMMON = (CONFIG, HELP_ALL, "help")  # options on the first screen of every command
_METAVARS = {int: "NUMBER", float: "NUMBER", Path: "FILE"}  # what an option takes, where its declaration does not say


def asks(**requests: str) -> Callable[[Main], Main]:
    """Mark a function that takes requests: the name of each parameter, and "module:Class" of its request."""

    def mark(main: Main) -> Main:
        main.asks = requests  # type: ignore[attr-defined]
        return main

    return mark


class Command(TyperCommand):
    """A command that runs one function. `params` and `callback` are made when first read."""

    def __init__(self, name: str, main: Main, *, hidden: bool = False) -> None:
        self.main_function = main
        super().__init__(name, help=inspect.getdoc(main), rich_markup_mode=None, hidden=hidden)

    @property
    def _inner(self) -> Any:
        return _with_params(self.name, self.main_function)

    @property
    def params(self) -> Any:
        return self._inner.params

    @params.setter
    def params(self, _: object) -> None:
        """Ignore the [] that typer sets when it constructs a command: ours are made when first read."""

    @property
    def callback(self) -> Any:
        return self._inner.callback

    @callback.setter
    def callback(self, _: object) -> None:
        """Ignore the None that typer sets when it constructs a command: ours is made when first read."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments, and accept earlier names of options.

        Raises:
            OptionError: an argument is empty, as from an unset shell variable; as a path it would mean this folder.
        """
        for before, arg in zip(["", *args], args, strict=False):
            option, equals, value = arg.partition("=")
            if not arg.strip() or (option.startswith("--") and equals and not value.strip()):
                place = f"in {arg}" if equals else f"after {before or self.name}"
                raise OptionError(f"{place} there is an empty text; give a value, or set the shell variable")
        today = {a.option.earlier: a.name for a in self._fields if a.option.earlier}
        named = (arg.partition("=") for arg in args)
        return super().parse_args(ctx, [today.get(name, name) + equals + value for name, equals, value in named])

    @property
    def names_elsewhere(self) -> dict[str, str]:
        """The fields of options by the additional names that a file may use."""
        return {f.option.also: f.field for f in self._fields if f.option.also}

    @property
    def _fields(self) -> list[RequestOption]:
        """The options that its requests declare."""
        requests = map(_load, getattr(self.main_function, "asks", {}).values())
        return [declared for request in requests for declared in options_of(request)]

    def get_help(self, ctx: Any) -> str:
        return command_help(self, ctx, common={*_COMMON, *(a.field for a in self._fields if a.option.common)})

    def invoke(self, ctx: Any) -> Any:
        """Run the function; refuse NaN, infinity, and integers beyond 64 bits."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for number in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    check_number(parameter.opts[0], number, WORD if isinstance(number, int) else FINITE)
        return super().invoke(ctx)


@cache
def _with_params(name: str | None, main: Main) -> Any:
    """Make the command with its parameters: once for each, as it takes most of the time of parsing."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(with_options(main))
    return typer.main.get_command(alone)


def _as_annotated(hint: Any) -> Any:
    """Undo an implicit Optional: Python 3.10 reads `Annotated[X | None, ...] = None` as Optional of the whole."""
    return next((arg for arg in get_args(hint) if get_origin(arg) is Annotated), hint)


def with_options(main: Main) -> Main:
    """Wrap a function with the signature that typer reads: the options of its requests, then its own."""
    kinds = {name: _load(path) for name, path in getattr(main, "asks", {}).items()}
    annotations = get_type_hints(main, localns={kind.__name__: kind for kind in kinds.values()}, include_extras=True)
    hints = {name: _as_annotated(hint) for name, hint in annotations.items()}
    own_parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(main).parameters.items()
        if name not in kinds
    ]
    request_parameters = [_parameter(declared) for kind in kinds.values() for declared in options_of(kind)]
    shared = [
        inspect.Parameter(CONFIG, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CONFIG_OPTION),
        inspect.Parameter(HELP_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HELP_ALL_OPTION),
    ]

    def run(**typed: Any) -> Any:
        for parameter in shared:
            del typed[parameter.name]
        requests: dict[str, Any] = {name: request_from(kind, typed) for name, kind in kinds.items()}
        return main(**requests, **{parameter.name: typed[parameter.name] for parameter in own_parameters})

    run.__doc__ = main.__doc__
    parameters = sorted([*request_parameters, *own_parameters, *shared], key=_place)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


_CONFIG_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=take_config,
        is_eager=True,
        help="YAML file of options, such as `lr: 0.0002`; the command line takes precedence.",
        rich_help_panel=HELP,
    ),
]
_HELP_ALL_OPTION = Annotated[
    bool,
    typer.Option(
        "--help-all", callback=show_all, is_eager=True, help="Show every option, and exit.", rich_help_panel=HELP
    ),
]


def _load(path: str) -> type:
    module, _, name = path.partition(":")
    kind: type = getattr(import_module(module), name)
    return kind


def _parameter(declared: RequestOption) -> inspect.Parameter:
    """An option as a parameter for typer."""
    option, default = declared.option, _shown(declared)
    kind: Any = list[declared.typed] if option.repeated else declared.typed  # type: ignore[name-defined]
    if default is None:
        kind = kind | None
    metavar = option.metavar or _METAVARS.get(declared.typed, "NAME")
    if option.panel is None:
        info = typer.Argument(help=option.help, metavar=option.metavar or declared.field.upper())
    else:
        # A flag that is off by default needs no --no- form.
        names = [declared.name] if option.name or option.short or default is False else []
        names += [option.short] if option.short else []
        info = typer.Option(*names, help=option.help, rich_help_panel=option.panel, metavar=metavar)
    return inspect.Parameter(
        declared.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _shown(declared: RequestOption) -> Any:
    """The default as it would be typed, for the help; None where there is none to show."""
    if declared.required:
        return inspect.Parameter.empty
    if declared.option.repeated or declared.default in (None, ()) or isinstance(declared.default, Mapping):
        return None
    if declared.option.read is None:
        return declared.default
    many = declared.default if isinstance(declared.default, tuple) else (declared.default,)
    return ",".join(map(str, many))


def _place(parameter: inspect.Parameter) -> int:
    """Sort arguments first, then options by panel."""
    infos = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
    if not infos or not isinstance(infos[0], typer.models.OptionInfo):
        return -1
    panel = infos[0].rich_help_panel
    if panel in PANELS:
        return PANELS.index(panel)
    return PANELS.index(OUTPUT) if panel != HELP else len(PANELS)
