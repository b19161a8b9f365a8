"""The kinds of JSON files that edgevit writes: each has a frozen record, a schema number, and one way in and out.

    EXPORT_KIND = RecordKind("export", ExportRecord, READER)
    record = EXPORT_KIND.read(file, folder=file.parent)
    write_whole(file, EXPORT_KIND.text(record))

A file of another schema is refused; a change of a record that is not compatible raises its kind's schema by one.

A record with a field `more: More` keeps there the keys of the file that are no fields, and writes them back in their
place. A field with the metadata PLACE is the path of the file: it is given to `read` and not written, because folders
move.

A sealed file contains `record`, the name of its kind, and `content_sha256`, a hash of its other keys, so that a change
by hand or a flipped bit is an error. The declaration of a kind that is not sealed says why.

Every kind has its JSON Schema in docs/schemas. A test checks this, and that nothing else writes JSON or YAML.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, TypeAdapter
from pydantic.json_schema import SkipJsonSchema

from edgevit import __version__
from edgevit.records.documents import Reader, format_value

T = TypeVar("T")
MORE = "more"
_RECORD, _SEAL = "record", "content_sha256"  # keys of a sealed file: the name of its kind, and its hash
_WRITTEN = "written"
PLACE = {_WRITTEN: False}  # metadata of a field that is the path of the file

More = SkipJsonSchema[dict[str, Any]]
Place = SkipJsonSchema[Path]


def _name_edgevit(versions: dict[str, str]) -> dict[str, str]:
    if "edgevit" not in versions:
        raise ValueError("it does not state which edgevit wrote the file")
    return versions


Versions = Annotated[dict[str, str], AfterValidator(_name_edgevit)]  # versions of edgevit and of the libraries it used


@dataclass(frozen=True)
class RecordKind(Generic[T]):
    """One kind of JSON file: the record in it, and how it is read."""

    name: str  # name of the JSON Schema in docs/schemas/
    record: type[T]
    reader: Reader
    sealed: bool = True
    schema: int = 1

    def read(self, file: Path, **places: Path) -> T:
        """Read a file.

        Raises:
            self.reader.error: it is missing, damaged, altered, or of another schema.
        """
        return self.checked(self.reader.json(file, dict[str, object]), str(file), **places)

    def checked(self, content: Mapping[str, Any], source: str, **places: Path) -> T:
        """Convert the content of a file to its record; `source` names the file in messages.

        Raises:
            self.reader.error: it is damaged, altered, or of another schema.
        """
        self._check_schema(content, source)
        fields_of_record = {name: value for name, value in content.items() if name not in self._keys}
        paths = {name: str(path) for name, path in places.items()}
        record = self.reader.checked(_moved({**fields_of_record, **paths}, self.record), self.record, source)
        if self.sealed:
            self._check_seal(content, source)
        return record

    @property
    def _keys(self) -> tuple[str, ...]:
        """The keys of a file that are no fields of its record."""
        return ("schema", _RECORD, _SEAL) if self.sealed else ("schema",)

    def _check_schema(self, content: Mapping[str, Any], source: str) -> None:
        schema = content.get("schema")
        if type(schema) is int and schema == self.schema:
            return
        writer = _version(content)
        raise self.reader.error(
            f"{source} has {f'schema {format_value(schema)}' if 'schema' in content else 'no schema'}, written by "
            f"{f'edgevit {writer}' if writer else 'an unknown version'}; edgevit {__version__} reads schema "
            f"{self.schema}: write it again with this version{f', or use edgevit {writer}' if writer else ''}"
        )

    def _check_seal(self, content: Mapping[str, Any], source: str) -> None:
        kind, expected = content.get(_RECORD, self.name), str(content.get(_SEAL) or "none")
        if kind != self.name:
            raise self.reader.error(
                f"{source} has a record of kind {str(kind)[:40]!r}, expected {self.name!r}; {self.reader.hint}"
            )
        if (actual := content_sha256(content)) != expected:
            raise self.reader.error(
                f"{source} was altered: the hash of its content is {actual[:12]}, the file states {expected[:12]}; "
                f"{self.reader.hint}"
            )

    def content(self, record: T) -> dict[str, object]:
        """The content of the file of a record."""
        kind = {_RECORD: self.name} if self.sealed else {}
        content = {"schema": self.schema, **kind, **plain(record)}
        return seal(content) if self.sealed else content

    def text(self, record: T) -> str:
        return json.dumps(self.content(record), indent=2) + "\n"

    def json_schema(self) -> dict[str, object]:
        """The JSON Schema of the files of this kind."""
        described = TypeAdapter(self.record).json_schema()
        keys: dict[str, object] = {"schema": {"const": self.schema, "type": "integer"}}
        if self.sealed:
            keys[_RECORD] = {"const": self.name, "type": "string"}
            keys[_SEAL] = {"pattern": "^[0-9a-f]{64}$", "type": "string"}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **described,
            "properties": {**keys, **described["properties"]},
            "required": [*keys, *described.get("required", ())],
        }


def seal(content: Mapping[str, Any]) -> dict[str, object]:
    """The content of a file with its seal renewed."""
    return {**content, _SEAL: content_sha256(content)}


def content_sha256(content: Mapping[str, Any]) -> str:
    """Hash the content of a file except its seal; independent of the order of its keys and of its layout."""
    hashed = {name: value for name, value in content.items() if name != _SEAL}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def _version(content: Mapping[str, Any]) -> str | None:
    """The version of edgevit that a file states as its writer."""
    versions = content.get("versions")
    writer = str(versions.get("edgevit") if isinstance(versions, dict) else content.get("edgevit"))
    version = re.match(r"\d[\w.]{0,40}", writer)
    return version[0] if version else None


def plain(value: Any) -> Any:
    """Convert a record to the plain values of JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        content = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.metadata.get(_WRITTEN, True)}
        more = content.pop(MORE, {})
        return {**content, **more}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _moved(value: Any, kind: type) -> Any:
    """Move keys that are no fields of a record into its field `more`, if it has one; in nested records, too."""
    if not isinstance(value, dict):
        return value
    records = _records_in(kind)
    content = {
        key: part if (record := records[key]) is None else _moved(part, record)
        for key, part in value.items()
        if key in records and key != MORE
    }
    more = {key: part for key, part in value.items() if key not in records or key == MORE}
    return {**content, MORE: more} if MORE in records else {**content, **more}


@cache
def _records_in(kind: type) -> dict[str, type | None]:
    """The fields of a record class, each with its own record class; typing takes a millisecond for one."""
    return {name: _record_of(hint) for name, hint in get_type_hints(kind).items()}


def _record_of(hint: Any) -> type | None:
    """The record class of a field of type `Record` or `Record | None`; None for all others, lists of records too."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    if get_origin(hint) in (tuple, list, dict):
        return None
    return next((kind for part in get_args(hint) if (kind := _record_of(part)) is not None), None)
