"""Read JSON and YAML files into typed records; a fault of a file becomes an error of one line with a hint.

The host reads every JSON or YAML file, whether edgevit or a person wrote it, through a `Reader`:

    READER = Reader(CheckpointError, hint="write the class names again, one string for each")
    names = READER.json(Path("names.json"), list[str])

Files that edgevit writes have a `RecordKind` (edgevit/records/kinds.py), which uses such a reader. The files of a model
folder are read by `ModelFolder`, which alone knows their names.

The type of the record is any that pydantic supports: a frozen dataclass, a pydantic model, `dict[str, Any]`. Types are
strict ("3" is not 3). A missing key, NaN, infinity, a date, a duplicate key and too deep nesting are faults, too. The
meaning of values is checked by the record itself, in `__post_init__`, or by the caller.
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

LIMIT_BYTES = 256 << 20  # a larger file is a wrong path, such as that of an image or of weights
DEPTH, VALUES = 64, 10**7  # most nesting, and most values: a few YAML aliases can expand to more than fits in memory


@dataclass(frozen=True)
class Reader:
    """Reads JSON, YAML and text files, and raises one class of error with one hint."""

    error: type[EdgeVitError]  # class of the exception that is raised for every fault
    hint: str  # what to do with a damaged file, such as "derive the model again"

    def json(self, file: Path, kind: type[T]) -> T:
        """Read a JSON file as `kind`.

        Raises:
            self.error: it is missing, unreadable, not JSON, or of another type.
        """
        return self.parse(self.text(file), kind, str(file))

    def parse(self, text: str | bytes, kind: type[T], source: str) -> T:
        """Read JSON text, or its bytes in UTF-8, as `kind`; `source` names it in messages."""
        return self.checked(self.values(text, source), kind, source)

    def values(self, text: str | bytes, source: str) -> Any:
        """Read JSON text as plain values without checks: a number may be infinite."""
        try:
            text = text if isinstance(text, str) else text.decode()
            return json.loads(text, object_pairs_hook=_without_duplicates)
        except RecursionError as error:
            raise self._fault(source, "is nested too deeply") from error
        except UnicodeDecodeError as error:
            raise self._fault(source, f"is not text in UTF-8 (byte {error.start})") from error
        except ValueError as error:  # JSONDecodeError, or a number of thousands of digits
            raise self._fault(source, f"is not JSON ({_line(error)})") from error

    def json_lines(self, file: Path, kind: type[T]) -> list[T]:
        """Read a file of one JSON value per line, without blank lines."""
        return [self.parse(line, kind, source) for source, line in self.lines(file)]

    def lines(self, file: Path) -> Iterator[tuple[str, bytes]]:
        """Read a file of any size line by line; yield each line that is not blank, after its name for messages.

        Only a newline ends a line: JSON strings may contain U+2028, U+0085 and the like.
        """
        with self._reading(file), open_regular(str(file)) as opened:
            number = 0
            while line := opened.readline(LIMIT_BYTES + 1):
                number += 1
                source = f"{file}, line {number}"
                if len(line) > LIMIT_BYTES:
                    raise self._fault(source, f"has more than {LIMIT_BYTES / 1e6:.0f} MB")
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield source, line

    def yaml(self, file: Path, kind: type[T]) -> T:
        """Read a YAML file as `kind`."""
        text = self.text(file)
        try:
            data = yaml.load(text, _Loader)  # a SafeLoader
        except RecursionError as error:
            raise self._fault(str(file), "is nested too deeply") from error
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: an impossible date or number
            raise self._fault(str(file), f"is not YAML: {_line(error)}") from error
        return self.checked(data, kind, str(file))

    def text(self, file: Path) -> str:
        """Read a text file in UTF-8."""
        with self._reading(file):
            with open_regular(str(file)) as opened:
                content = opened.read(LIMIT_BYTES + 1)  # files of /proc have no size
            if len(content) > LIMIT_BYTES:
                raise self._fault(str(file), f"has more than {LIMIT_BYTES / 1e6:.0f} MB, more than any such file")
            text = content.decode("utf-8-sig")  # editors on Windows write a byte order mark
            return text.replace("\r\n", "\n").replace("\r", "\n")

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        """Convert errors of reading a file to the error of this reader."""
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

    def checked(self, data: Any, kind: type[T], source: str) -> T:
        """Convert plain values to `kind`."""
        try:
            _check_plain(data)
        except ValueError as error:
            raise self._fault(source, str(error)) from error
        try:
            # As JSON, whose arrays may be tuples of a record; strict, so that "3" is not 3.
            record: T = _adapter(cast("Any", kind)).validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            raise self._fault(source, _format_validation(error, kind)) from error
        return record

    def _fault(self, source: str, fault: str) -> EdgeVitError:
        return self.error(f"{source} {fault}; {self.hint}")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """YAML without duplicate keys, of which the last would win silently, and with the numbers of JSON.

    1e-4 is a number; 00012, 0x1f and 12:30 are texts: YAML 1.1 reads the class 00012 as the octal number 10.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = key.value if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge") else None
            if name in names:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} is there twice", key.start_mark)
            if name is not None:
                names.add(name)
        return super().construct_mapping(node, deep)


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INTEGER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return content


def _check_plain(data: Any) -> None:
    """Raise ValueError unless `data` consists of finite values of JSON, not nested too deeply."""
    pending: list[tuple[Any, Any, int]] = [([data], None, -1)]  # containers with their paths and depths
    count = 0
    while pending:
        value, path, depth = pending.pop()
        count += len(value)
        if depth >= DEPTH or count > VALUES:
            raise ValueError("is nested too deeply" if depth >= DEPTH else f"holds more than {VALUES} values")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    under = f" under {_path_text(path)}" if path else ""
                    raise ValueError(f"has the key {format_value(key)}{under}: put it in quotes")
            parts: Iterable[tuple[Any, Any]] = value.items()
        elif all(map(_is_figure, value)):  # lists of latencies have hundreds of thousands
            continue
        else:
            parts = enumerate(value)
        for key, part in parts:
            if isinstance(part, (dict, list)):
                pending.append((part, (path, key) if depth >= 0 else None, depth + 1))
            elif not _is_figure(part) and (fault := _value_fault(part)):
                raise ValueError(fault.replace(_PATH, _path_text((path, key) if depth >= 0 else None)))


_PATH = "\0"  # placeholder in a fault, replaced by the path of the value, which contains no zero byte


def _value_fault(value: Any) -> str | None:
    """Describe the fault of a value that is neither a container nor a valid number; None: there is none."""
    if isinstance(value, str):
        return f"has a zero byte in {_PATH}" if "\0" in value else None
    if isinstance(value, float):
        return f"has {value} as {_PATH}, which is no finite number"
    if isinstance(value, int):
        return None if isinstance(value, bool) else f"has a number of {len(str(abs(value)))} digits as {_PATH}"
    return None if value is None else f"has {value} as {_PATH}, a {type(value).__name__}: put it in quotes"


def _is_figure(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and isfinite(value))


def _path_text(path: Any) -> str:
    """A path, of nested pairs of a path and a key, with dots; None: the whole document."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return shortened(printable(".".join(reversed(keys))), 200) or "its value"


@lru_cache  # slower to build than a file to read
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _format_validation(error: ValidationError, kind: Any) -> str:
    """Describe the first fault of a record, as the end of a sentence that starts with the name of the file."""
    faults = error.errors(include_url=False)
    # A misspelt key is also a missing one; the former has the better hint.
    first = next((fault for fault in faults if fault["type"] in _UNKNOWN), faults[0])
    path = ".".join(shortened(str(part)) for part in first["loc"])
    if first["type"] == "missing":
        return f"lacks {path}"
    if first["type"] in _UNKNOWN:
        keys = _keys_at(kind, first["loc"][:-1])
        close = get_close_matches(shortened(str(first["loc"][-1])), keys, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(keys)}"
        return f"has the unknown key {path!r}; {hint}"
    if first["type"] == "value_error":  # raised by a check of the record itself
        return f"is wrong{f' in {path}' if path else ''}: {first['msg'].removeprefix('Value error, ')}"
    expected = first["msg"].replace("Input should be", "expected")
    return f"has {format_value(first['input'])}{f' as {path}' if path else ''}, {expected[:1].lower()}{expected[1:]}"


def _keys_at(kind: Any, path: tuple[str | int, ...]) -> list[str]:
    """The keys of the record at `path` below `kind`."""
    for part in path:
        # Otherwise it is an index of a list, or a member of a union: neither changes the record.
        kind = _record_in(_hints(kind).get(str(part), kind))
    return list(_hints(_record_in(kind)))


def _record_in(kind: Any) -> Any:
    """The first record type within list[...], ... | None, and the like; `kind` itself if there is none."""
    if _hints(kind):
        return kind
    return next((record for part in get_args(kind) if _hints(record := _record_in(part))), kind)


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
