"""A command of `edgevit`: its options are made from the fields of a request, and `--config FILE` may give any of them.

    @asks(request="edgevit.derivation.request:DeriveRequest")
    def main(request: DeriveRequest, *, json: JsonFlag = False) -> None:

is a command with every option that DeriveRequest declares and, after them, those of `main` itself. A request is
imported when its command is typed: `edgevit --help` shows one line of each and should take no longer for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from edgevit.cli.config import CONFIG, take_config
from edgevit.errors import OptionError
from edgevit.numbers import FINITE, WORD, check_number
from edgevit.request import OUTPUT, PANELS, RequestOption, options_of, request_from

Main = Callable[..., Any]


def asks(**requests: str) -> Callable[[Main], Main]:
    """Mark a function as one that gets requests: the name of each parameter, and "module:Class" of the request."""

    def mark(main: Main) -> Main:
        main.asks = requests  # type: ignore[attr-defined]
        return main

    return mark


class Command(TyperCommand):
    """What runs one function of the command line. `params` and `callback` are made when they are first asked for."""

    def __init__(self, name: str, main: Main) -> None:
        self.main_function = main
        super().__init__(name, help=inspect.getdoc(main), rich_markup_mode="markdown")

    @cached_property
    def _made(self) -> Any:
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        alone.command(self.name)(with_options(self.main_function))
        made: Any = typer.main.get_command(alone)
        return made

    @property
    def params(self) -> Any:
        return self._made.params

    @params.setter
    def params(self, _: object) -> None:
        """Ignore the [] that typer sets when it constructs a command: ours are made when first read."""

    @property
    def callback(self) -> Any:
        return self._made.callback

    @callback.setter
    def callback(self, _: object) -> None:
        """Ignore the None that typer sets when it constructs a command: ours is made when first read."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read what was typed; an option may have the name that it once had.

        Raises:
            OptionError: an empty text, as of a variable that the shell does not know; as a path it is this folder.
        """
        for before, arg in zip(["", *args], args, strict=False):
            option, equals, value = arg.partition("=")
            if not arg.strip() or (option.startswith("--") and equals and not value.strip()):
                where = f"in {arg}" if equals else f"after {before or self.name}"
                raise OptionError(f"an empty text stands {where}; give a value, or set the shell's variable it is of")
        today = {a.option.earlier: a.name for a in self._asked if a.option.earlier}
        named = (arg.partition("=") for arg in args)
        return super().parse_args(ctx, [today.get(name, name) + equals + value for name, equals, value in named])

    @property
    def names_elsewhere(self) -> dict[str, str]:
        """What a file may call an option, too: the option's field by that name."""
        return {asked.option.also: asked.field for asked in self._asked if asked.option.also}

    @property
    def _asked(self) -> list[RequestOption]:
        """The options of its requests."""
        requests = map(_found, getattr(self.main_function, "asks", {}).values())
        return [asked for request in requests for asked in options_of(request)]

    def invoke(self, ctx: Any) -> Any:
        """Run it, but refuse NaN, infinity, and whole numbers that no machine word holds."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, (int, float)) and not isinstance(one, bool):
                    check_number(parameter.opts[0], one, WORD if isinstance(one, int) else FINITE)
        return super().invoke(ctx)


def _as_annotated(hint: Any) -> Any:
    """The annotation as it stands: Python 3.10 reads `Annotated[X | None, ...] = None` as Optional of the whole."""
    return next((arg for arg in get_args(hint) if get_origin(arg) is Annotated), hint)


def with_options(main: Main) -> Main:
    """Give a function the signature that typer makes options from: those of its requests, then its own."""
    kinds = {name: _found(where) for name, where in getattr(main, "asks", {}).items()}
    found = get_type_hints(main, localns={kind.__name__: kind for kind in kinds.values()}, include_extras=True)
    hints = {name: _as_annotated(hint) for name, hint in found.items()}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(main).parameters.items()
        if name not in kinds
    ]
    asked = [_parameter(one) for kind in kinds.values() for one in options_of(kind)]
    config = inspect.Parameter(CONFIG, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CONFIG_OPTION)

    def made(**typed: Any) -> Any:
        typed.pop(CONFIG)
        given: dict[str, Any] = {name: request_from(kind, typed) for name, kind in kinds.items()}
        return main(**given, **{parameter.name: typed[parameter.name] for parameter in own})

    made.__doc__ = main.__doc__
    parameters = sorted([*asked, *own, config], key=_place)
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return made


_CONFIG_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=take_config,
        is_eager=True,
        help="YAML file of options, such as `lr: 0.0002`; what stands on the command line wins.",
        rich_help_panel="Configuration",
    ),
]


def _found(where: str) -> type:
    module, _, name = where.partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _parameter(asked: RequestOption) -> inspect.Parameter:
    """One option as typer knows it."""
    option, default = asked.option, _shown(asked)
    kind: Any = list[asked.typed] if option.repeated else asked.typed  # type: ignore[name-defined]
    if default is None:
        kind = kind | None
    if option.panel is None:
        info = typer.Argument(help=option.help, metavar=option.metavar)
    else:
        # A switch that is off has no counterpart that turns it off.
        names = [asked.name] if option.name or option.short or default is False else []
        names += [option.short] if option.short else []
        info = typer.Option(*names, help=option.help, rich_help_panel=option.panel, metavar=option.metavar)
    return inspect.Parameter(
        asked.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _shown(asked: RequestOption) -> Any:
    """The default as typer shows it: as it would be typed; None where there is none to show."""
    if asked.required:
        return inspect.Parameter.empty
    if asked.option.repeated or asked.default in (None, ()) or isinstance(asked.default, Mapping):
        return None
    if asked.option.read is None:
        return asked.default
    many = asked.default if isinstance(asked.default, tuple) else (asked.default,)
    return ",".join(map(str, many))


def _place(parameter: inspect.Parameter) -> int:
    """What is given by its place comes first, then one panel after the other."""
    infos = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
    if not infos or not isinstance(infos[0], typer.models.OptionInfo):
        return -1
    panel = infos[0].rich_help_panel
    if panel in PANELS:
        return PANELS.index(panel)
    return PANELS.index(OUTPUT) if parameter.name != CONFIG else len(PANELS)
