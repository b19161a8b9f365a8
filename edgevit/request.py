"""How an option is declared: once, as an annotated field of a frozen request.

    @dataclass(frozen=True, kw_only=True)
    class DeriveRequest:
        rate: Annotated[float | None, Option("Share of the base's MACs to remove: 0.6 leaves 40 %.", BUDGET)] = None

The option `--rate`, its line in the help, its key in a file, the keyword `rate` of `edgevit.derive` and its key in
request.json are all made from that field. A field without an `Option` is internal: a user cannot set it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, reduce, wraps
from inspect import Parameter, Signature, signature
from operator import or_
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from edgevit.errors import LONGEST_NAME, OptionError
from edgevit.text import shortened

# Panels of --help, in the order in which they are shown.
MODEL, FILES, DATA = "Model", "Files", "Data"
PREPROCESSING = "Preprocessing, where it is not the base's own"
BUDGET, BUDGETS, SHAPE, TRAINING = "Budget (one of them)", "Budget", "Method and shape", "Training"
CHECKS, COMPUTING, ENGINE = "Checks that must pass", "Computing", "Engine on the board"
BOARD, JOBS = "Board", "Jobs"
RUNNER, LOAD, MEASURING, JUDGING, OUTPUT = "Runner", "Load", "Measuring", "Judging", "Output"
PANELS = (
    MODEL, FILES, DATA, PREPROCESSING, BUDGET, BUDGETS, OUTPUT, SHAPE, TRAINING, CHECKS, ENGINE, BOARD, JOBS, RUNNER,
    LOAD, MEASURING, JUDGING, COMPUTING,
)  # fmt: skip

_PLAIN = (bool, int, float, str, Path)  # what a text on the command line can be by itself

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Given = Mapping[str, Any]
Prepare = Callable[[dict[str, Any], str], dict[str, Any]]


@dataclass(frozen=True)
class Option:
    """The properties of an option beyond the name, type and default of its field."""

    help: str  # a sentence; a default that is not a value follows it as "  [default: the method's own]"
    panel: str | None  # None: a positional argument
    name: str | None = None  # if it differs from the field's, such as "--set"
    short: str | None = None  # such as "-o"
    earlier: str | None = None  # a former name, which is still accepted and not in the help
    also: str | None = None  # another name in a file: the one that other commands use
    metavar: str | None = None  # the word for its value in the help, if not NUMBER, FILE or NAME
    common: bool = False  # shown by --help; the others are shown by --help-all
    repeated: bool = False  # may be given several times; `read` gets a list
    # Converts the typed text to the field's value; the second argument has the other options as typed.
    read: Callable[[Any, Given], Any] | None = None


@dataclass(frozen=True)
class Nested:
    """Marks a field that is a record of options, such as `training`; each of them is an option of the command."""

    of: type | None = None  # the record, where the field is a mapping of what is given of it
    only: tuple[str, ...] = ()  # the options of it that there are here; empty: all
    without: tuple[str, ...] = ()  # but for these
    help: Given = field(default_factory=dict)  # in place of the record's own, by field


@dataclass(frozen=True)
class RequestOption:
    """One option of a request."""

    path: tuple[str, ...]  # names of fields, from the request down to it
    option: Option
    kind: Any  # the field's type
    default: Any  # MISSING: it must be given

    @property
    def field(self) -> str:
        return self.path[-1]

    @property
    def name(self) -> str:
        """The option as it is typed: --skip-bad-images."""
        return self.option.name or "--" + self.field.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def typed(self) -> type:
        """The type to which the command line converts one text: the first plain type of the field or its entries."""
        if self.option.read is not None:
            return str
        plain = next((kind for kind in (self.kind, *get_args(self.kind)) if kind in _PLAIN), str)
        return cast("type", plain)


@cache
def options_of(kind: Any) -> tuple[RequestOption, ...]:
    """All options of a request, those of nested records among them, in the order of the fields."""
    return tuple(_walk(kind, ()))


def _walk(kind: type, above: tuple[str, ...]) -> Iterator[RequestOption]:
    hints = get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        plain, *marks = get_args(hints[item.name]) if get_origin(hints[item.name]) is Annotated else [hints[item.name]]
        path = (*above, item.name)
        for mark in marks:
            if isinstance(mark, Option):
                yield RequestOption(path, mark, plain, default_of(item))
            elif isinstance(mark, Nested):
                yield from _nested(mark, plain, path, default_of(item))


def _nested(mark: Nested, plain: Any, path: tuple[str, ...], default: Any) -> Iterator[RequestOption]:
    for declared in _walk(mark.of or plain, path):
        if (mark.only and declared.field not in mark.only) or declared.field in mark.without:
            continue
        option = replace(declared.option, help=mark.help.get(declared.field, declared.option.help))
        value = default
        for name in declared.path[len(path) :]:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
        yield replace(declared, option=option, default=value)


def default_of(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


# -- from Python -------------------------------------------------------------------------------------------------------


def request_of(kind: type[R], keywords: Given, function: str) -> R:
    """Build a request from keywords; a text may stand for what it is read as, and None for the default.

    A record inside of it, such as `training`, is given as a whole, or its options are, each by its name.

    Args:
        function: the name of the public function, for messages.

    Raises:
        OptionError: a keyword that the request does not have, or one is missing.
    """
    _check_names(kind, keywords, function)
    options = {declared.field: declared for declared in options_of(cast("Any", kind))}
    hints, values, inside = _hints(cast("Any", kind)), dict[str, Any](), dict[str, Any]()
    for name, value in keywords.items():
        declared = options.get(name)
        hint = hints[name] if declared is None else declared.kind
        if value is None and NoneType not in get_args(hint):
            continue
        if declared is None:
            values[name] = _whole(value, hint, f"{function} takes {name!r}")
            continue
        if isinstance(value, str):
            value = _from_text(value, declared.option.read, hint, keywords)
        if isinstance(value, Path) and get_origin(hint) is Sequence:
            value = (value,)
        _put(values if len(declared.path) == 1 else inside, declared.path, value)
    if both := values.keys() & inside.keys():
        record = both.pop()
        raise OptionError(
            f"{function} was given {record!r} as a whole, and {', '.join(inside[record])} of it; leave that out"
        )
    return kind(**values, **_records(kind, inside))


def _check_names(kind: Any, keywords: Given, function: str) -> None:
    """Refuse keywords that a request does not have, and a missing one."""
    options = options_of(kind)
    known = dict.fromkeys([*(declared.field for declared in options), *(declared.path[0] for declared in options)])
    for name in keywords:
        if name not in known:
            raise OptionError(f"{function} has no option {name!r}; {nearest(name, known)}")
    for declared in options:
        name, option = declared.field, declared.option
        if declared.required and keywords.get(name) is None:
            raise OptionError(
                f"{function} needs {name!r}, which was not given; give {name}={option.metavar or 'VALUE'}: "
                f"{shortened(option.help)}"
            )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a record's fields: a jobs file has thousands of requests, and typing takes milliseconds for one."""
    return get_type_hints(kind)


def _whole(value: Any, kind: Any, context: str) -> Any:
    """Return a record that was given as a whole; OptionError if it is of another type."""
    if is_dataclass(kind) and not isinstance(value, cast("type", kind)):
        name = cast("type", kind).__name__
        raise OptionError(f"{context} as {name}, and was given {value!r}; or give the options of {name} by their names")
    return value


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in mappings inside of each other."""
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _records(kind: Any, inside: Given) -> dict[str, Any]:
    """The records of a request, by its fields, with what was given in place of their own."""
    return {item.name: _changed(default_of(item), inside[item.name]) for item in fields(kind) if item.name in inside}


def _changed(default: Any, changes: Given) -> Any:
    if isinstance(default, Mapping):
        return {**default, **changes}
    current = {name: getattr(default, name) for name in changes}
    return replace(
        default,
        **{
            name: _changed(current[name], value) if is_dataclass(current[name]) else value
            for name, value in changes.items()
        },
    )


def _from_text(text: str, read: Callable[[Any, Given], Any] | None, hint: Any, keywords: Given) -> Any:
    """The value of a field that was given as text: as it would be typed, unless the field may be a text itself."""
    if get_origin(hint) is tuple and read is not None:  # several, as they are typed
        return read(text, keywords)
    kinds = (hint, *get_args(hint))
    if str in kinds:
        return text
    if Path in kinds:
        return Path(text)
    return text if read is None else read(text, keywords)


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest name, as the end of a message; without one list the known names."""
    close = get_close_matches(shortened(name, LONGEST_NAME), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def check_paths(value: Any, function: str) -> None:
    """Refuse a first argument that is neither a path or name, nor several of them.

    Raises:
        TypeError: it is another object.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    for item in values:
        if item is not None and not isinstance(item, (str, PathLike)):
            raise TypeError(f"{function} takes a path or a timm name, not {type(item).__name__}")


def takes_options(
    kind: Any,
    *positional: str,
    prepare: Prepare | None = None,
    also: Given | None = None,
    usual: Mapping[str, Callable[[Given], Any]] | None = None,
) -> Callable[[F], F]:
    """Let a public function of a request be called with the options of the request, too.

        @takes_options(DeriveRequest, "base")
        def derive(request: DeriveRequest, progress: Progress | None = None) -> Derivation:

    Then `derive(base, rate=0.5)` is `derive(DeriveRequest(base=base, rate=0.5))`. `inspect.signature`, `help` and
    completion show each option, and `edgevit/__init__.pyi` shows them to type checkers.

    Args:
        positional: the options that need no name, in order.
        prepare: changes the keywords before they become a request, such as a module to a file; it also gets the name
            of the function, for messages.
        also: a further type that an option may have in Python, by name.
        usual: by name, how an option that Python need not give is made from the others; `progress` tells its value.
    """

    def with_options(function: F) -> F:
        name, (_, *extra) = f"edgevit.{function.__name__}", signature(function).parameters

        @wraps(function)
        def call(*values: Any, **keywords: Any) -> Any:
            if len(values) == 0 and positional[0] in keywords:
                values = (keywords.pop(positional[0]),)
            extra_values = {key: keywords.pop(key) for key in extra if key in keywords}
            if values and isinstance(values[0], kind):
                if keywords:
                    names = ", ".join(keywords)
                    raise OptionError(f"a whole {kind.__name__} was given, and {names} beside it; leave that out")
                return function(*values, **extra_values)
            if len(values) > len(positional):
                raise TypeError(f"{name} takes {' and '.join(positional)} by place, and was given {len(values)} values")
            by_place = zip(positional, values, strict=False)
            keywords = {**{key: value for key, value in by_place if value is not None}, **keywords}
            for option, made in (usual or {}).items():
                if keywords.get(option) is None:
                    keywords[option] = made(keywords)
                    if (progress := extra_values.get("progress")) is not None:
                        progress.note(f"{option} is {keywords[option]}, as none is given")
            if prepare is not None:
                _check_names(kind, keywords, name)  # before all images of a loader are written to the cache
                keywords = prepare(keywords, name)
            check_paths(keywords.get(positional[0]), name)
            return function(request_of(kind, keywords, name), **extra_values)

        call.__signature__ = _with_options(signature(function), kind, positional, also or {}, usual or {})  # type: ignore[attr-defined]
        return cast("F", call)

    return with_options


def _with_options(
    own: Signature, kind: Any, positional: Sequence[str], also: Given, usual: Collection[str]
) -> Signature:
    """The signature by options: those that need no name, the parameters of the function but for the request, the rest.

    A record inside of the request is an option as a whole, too.
    """
    parameters = dict[str, Parameter]()
    for option in options_of(kind):
        default = Parameter.empty if option.required else option.default
        accepted = _accepted(option)
        if option.field in also:
            accepted = accepted | also[option.field]
        if option.field in usual:
            default, accepted = None, accepted | None
        parameters[option.field] = Parameter(option.field, Parameter.KEYWORD_ONLY, default=default, annotation=accepted)
    records = {option.path[0] for option in options_of(kind) if len(option.path) > 1}
    for item in fields(kind):
        if item.name in records:
            hint = _hints(kind)[item.name]
            parameters[item.name] = Parameter(
                item.name, Parameter.KEYWORD_ONLY, default=default_of(item), annotation=hint
            )
    by_place = [parameters.pop(name).replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in positional]
    by_place[0] = by_place[0].replace(annotation=by_place[0].annotation | kind)
    _, *beside = own.parameters.values()
    beside = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in beside]
    return own.replace(parameters=[*by_place, *beside, *parameters.values()])


def _accepted(option: RequestOption) -> Any:
    """The types that an option may have in Python: also a text where one is read, and one path in place of several."""
    if option.kind == Sequence[Path]:
        return str | Path | Sequence[str | Path]
    kinds = (option.kind, *get_args(option.kind))
    is_read = Path in kinds or (option.option.read is not None and not option.option.repeated)
    return option.kind | str if is_read and str not in kinds else option.kind


# -- from texts --------------------------------------------------------------------------------------------------------


def request_from(kind: type[R], typed: Given) -> R:
    """Build a request from what was typed, by the names of fields; what is None was not given.

    Raises:
        OptionError: a text that cannot be read.
    """
    values, inside = dict[str, Any](), dict[str, Any]()
    for declared in options_of(cast("Any", kind)):
        if (value := typed.get(declared.field)) is None:
            continue
        if declared.option.read is not None:
            value = declared.option.read(value, typed)
        elif declared.option.repeated:
            value = tuple(value)
        _put(values if len(declared.path) == 1 else inside, declared.path, value)
    return kind(**values, **_records(kind, inside))


def plain_request(request: Any) -> dict[str, object]:
    """A request as JSON has it: paths as text, tuples as lists."""
    return dict(json.loads(json.dumps(asdict(request), default=str)))


def plain_type(kind: Any) -> Any:
    """A type as a file has its values: a path is a text, and a record is a mapping of what is given of it."""
    origin, inner = get_origin(kind), tuple(map(plain_type, get_args(kind)))
    if kind is Path or is_dataclass(kind):
        return str if kind is Path else dict[str, Any]
    if origin is tuple:  # as it is typed
        return str | None
    if origin in (Mapping, Sequence):
        return dict[inner[0], inner[1]] if origin is Mapping else list[inner[0]]  # type: ignore[valid-type]
    return reduce(or_, inner) if origin in (Union, UnionType) else kind


def assignments(option: str, example: str) -> Callable[[list[str], Given], dict[str, object]]:
    """Read `img_size=32` as {"img_size": 32}; a value that is no Python literal, nor `true` or `false`, is text."""

    def read(texts: list[str], _: Given) -> dict[str, object]:
        args: dict[str, object] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise OptionError(f"{option} {text} is not of the form name=value; try {option} {example}")
            try:
                args[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
            except (ValueError, SyntaxError):
                args[name] = value
        return args

    return read
