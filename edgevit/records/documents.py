"""Read JSON and YAML files into typed records; a fault of a file becomes one line that names it and says what to do.

Every JSON or YAML file that edgevit reads on the host comes through a `Reader`, whether edgevit or a person wrote it:

    READER = Reader(CheckpointError, mend="write the class names again, one string for each")
    names = READER.json(Path("names.json"), list[str])

What edgevit writes has a `RecordKind` (edgevit/records/kinds.py), which reads through such a reader. Whoever wants the
model of a folder asks `ModelFolder`, which alone knows the names of its files.

The record's type is any that pydantic knows: a frozen dataclass, a pydantic model, `dict[str, Any]`. Types are strict
("3" is no 3); a missing key, NaN, infinity, a date, a key that is there twice and nesting without end are faults of the
file, too. What the values mean is checked by the record itself, in `__post_init__`, or by who reads it.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from edgevit.agent.files import open_regular
from edgevit.errors import EdgeVitError
from edgevit.text import printable, shortened

T = TypeVar("T")

LIMIT_BYTES = 256 << 20  # no file of ours is nearly so large: a wrong path, such as that of an image or of weights
DEPTH, VALUES = 64, 10**7  # nesting, and values in all: YAML's aliases can make few lines into more than memory holds


@dataclass(frozen=True)
class Reader:
    """How files of one kind are read."""

    error: type[EdgeVitError]  # raised for every fault
    mend: str  # what to do about a damaged file, such as "derive the model again"

    def json(self, file: Path, kind: type[T]) -> T:
        """Read a JSON file as `kind`.

        Raises:
            self.error: it is missing, unreadable, not JSON, or of another type.
        """
        return self.parse(self.text(file), kind, str(file))

    def parse(self, text: str | bytes, kind: type[T], where: str) -> T:
        """Read JSON text, or its bytes in UTF-8, as `kind`; `where` names it in messages."""
        return self.checked(self.values(text, where), kind, where)

    def values(self, text: str | bytes, where: str) -> Any:
        """Read JSON text as plain values, which are not checked yet: a number may be infinite."""
        try:
            text = text if isinstance(text, str) else text.decode()
            return json.loads(text, object_pairs_hook=_without_twins)
        except RecursionError as error:
            raise self._fault(where, "is nested too deeply") from error
        except UnicodeDecodeError as error:
            raise self._fault(where, f"is not text in UTF-8 (byte {error.start})") from error
        except ValueError as error:  # JSONDecodeError, or a number of thousands of digits
            raise self._fault(where, f"is not JSON ({_line(error)})") from error

    def json_lines(self, file: Path, kind: type[T]) -> list[T]:
        """Read a file of one JSON value per line; blank lines do not count."""
        return [self.parse(line, kind, where) for where, line in self.lines(file)]

    def lines(self, file: Path) -> Iterator[tuple[str, bytes]]:
        """Read a file line by line, whatever its size: each line that is not blank, after the words that name it.

        A line ends at a newline alone: JSON may hold U+2028, U+0085 and the like as they are.
        """
        with self._reading(file), open_regular(str(file)) as opened:
            number = 0
            while line := opened.readline(LIMIT_BYTES + 1):
                number += 1
                where = f"{file}, line {number}"
                if len(line) > LIMIT_BYTES:
                    raise self._fault(where, f"has more than {LIMIT_BYTES / 1e6:.0f} MB")
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield where, line

    def yaml(self, file: Path, kind: type[T]) -> T:
        """Read a YAML file as `kind`."""
        text = self.text(file)
        try:
            data = yaml.load(text, _Loader)  # a SafeLoader
        except RecursionError as error:
            raise self._fault(str(file), "is nested too deeply") from error
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueErrors are of impossible dates and numbers
            raise self._fault(str(file), f"is not YAML: {_line(error)}") from error
        return self.checked(data, kind, str(file))

    def text(self, file: Path) -> str:
        """Read a text file in UTF-8."""
        with self._reading(file):
            with open_regular(str(file)) as opened:
                content = opened.read(LIMIT_BYTES + 1)  # of /proc no size says how much there is
            if len(content) > LIMIT_BYTES:
                raise self._fault(str(file), f"has more than {LIMIT_BYTES / 1e6:.0f} MB, more than any such file")
            text = content.decode("utf-8-sig")  # Windows editors put a mark before the first character
            return text.replace("\r\n", "\n").replace("\r", "\n")

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        """Turn what goes wrong while a file is read into this reader's error."""
        try:
            yield
        except FileNotFoundError as error:
            raise self.error(f"there is no {file}; check the path") from error
        except OSError as error:
            raise self.error(
                f"cannot read {file}: {error.strerror or error}; check the path and permissions"
            ) from error
        except UnicodeDecodeError as error:
            raise self._fault(str(file), f"is not text in UTF-8 (byte {error.start})") from error

    def checked(self, data: Any, kind: type[T], where: str) -> T:
        """Convert plain values to `kind`."""
        try:
            _check_plain(data)
        except ValueError as error:
            raise self._fault(where, str(error)) from error
        try:
            # As JSON, whose arrays are tuples, too, where a record says so; and strict, so that "3" is no 3.
            record: T = _adapter(cast("Any", kind)).validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            raise self._fault(where, _told(error, kind)) from error
        return record

    def _fault(self, where: str, what: str) -> EdgeVitError:
        return self.error(f"{where} {what}; {self.mend}")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """YAML without keys that are there twice: the last would win silently; and with the numbers that JSON has.

    So 1e-4 is one, and 00012, 0x1f and 12:30 are texts: YAML 1.1 takes the class 00012 for the number 10, in octal.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = key.value if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge") else None
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} is there twice", key.start_mark)
            if name is not None:
                seen.add(name)
        return super().construct_mapping(node, deep)


INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != INTEGER]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(INTEGER, re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return made


def _check_plain(data: Any) -> None:
    """Raise ValueError unless `data` is made of what JSON has, finite and not too deep."""
    waiting: list[tuple[Any, Any, int]] = [([data], None, -1)]  # containers, each with its path and depth
    count = 0
    while waiting:
        value, path, depth = waiting.pop()
        count += len(value)
        if depth >= DEPTH or count > VALUES:
            raise ValueError("is nested too deeply" if depth >= DEPTH else f"holds more than {VALUES} values")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    under = f" under {_at(path)}" if path else ""
                    raise ValueError(f"has the key {format_value(key)}{under}: put it in quotes")
            parts: Iterable[tuple[Any, Any]] = value.items()
        elif all(map(_is_figure, value)):  # latencies, by the hundred thousand
            continue
        else:
            parts = enumerate(value)
        for key, part in parts:
            if isinstance(part, (dict, list)):
                waiting.append((part, (path, key) if depth >= 0 else None, depth + 1))
            elif not _is_figure(part) and (fault := _fault_of(part)):
                raise ValueError(fault.replace(PLACE, _at((path, key) if depth >= 0 else None)))


PLACE = "\0"  # in a fault, where the path of its value is to stand: no such value holds one


def _fault_of(value: Any) -> str | None:
    """What is wrong with a value that is neither a container nor a sound number."""
    if isinstance(value, str):
        return f"has a zero byte in {PLACE}" if "\0" in value else None
    if isinstance(value, float):
        return f"has {value} as {PLACE}, which is no finite number"
    if isinstance(value, int):
        return None if isinstance(value, bool) else f"has a number of {len(str(abs(value)))} digits as {PLACE}"
    return None if value is None else f"has {value} as {PLACE}, a {type(value).__name__}: put it in quotes"


def _is_figure(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and isfinite(value))


def _at(path: Any) -> str:
    """The words for a path, which is its last key after the path to it; None: of the whole document."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return shortened(printable(".".join(reversed(keys))), 200) or "its value"


@lru_cache  # building one takes longer than reading a file
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _told(error: ValidationError, kind: Any) -> str:
    """The first thing that is wrong with a record, as the end of a sentence that starts with the file's name."""
    faults = error.errors(include_url=False)
    # A misspelt key is a missing one, too: the former says what to do.
    first = next((fault for fault in faults if fault["type"] in _UNKNOWN), faults[0])
    where = ".".join(shortened(str(part)) for part in first["loc"])
    if first["type"] == "missing":
        return f"lacks {where}"
    if first["type"] in _UNKNOWN:
        known = _known_keys(kind, first["loc"][:-1])
        close = get_close_matches(shortened(str(first["loc"][-1])), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        return f"has the unknown key {where!r}; {hint}"
    if first["type"] == "value_error":  # of the record's own check, in its own words
        return f"is wrong{f' in {where}' if where else ''}: {first['msg'].removeprefix('Value error, ')}"
    wanted = first["msg"].replace("Input should be", "expected")
    return f"has {format_value(first['input'])}{f' as {where}' if where else ''}, {wanted[:1].lower()}{wanted[1:]}"


def _known_keys(kind: Any, path: tuple[str | int, ...]) -> list[str]:
    """The keys that the record at `path` below `kind` has."""
    for part in path:
        # Else it is an index of a list, or the name of a member of a union: neither changes the record.
        kind = _record_in(_hints(kind).get(str(part), kind))
    return list(_hints(_record_in(kind)))


def _record_in(kind: Any) -> Any:
    """The first record type inside list[...], ... | None, and the like; `kind` itself if there is none."""
    if _hints(kind):
        return kind
    return next((found for part in get_args(kind) if _hints(found := _record_in(part))), kind)


def _hints(kind: Any) -> Mapping[str, Any]:
    if get_origin(kind) is not None or not isinstance(kind, type):
        return {}
    if issubclass(kind, BaseModel):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind)}
    return {}


def format_value(value: Any) -> str:
    """A value of a file in a message, shortened."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
