"""The kinds of JSON files that edgevit writes: each has a frozen record, a schema history, and one way in and out.

    EXPORT_KIND = RecordKind("export", ExportRecord, READER, schemas=(1, 2, 3))
    record = EXPORT_KIND.read(file, folder=file.parent)
    write_whole(file, EXPORT_KIND.text(record))

A field of a record that a new schema adds has a default, which holds for files of the schemas before it. A record with
a field `more: More` keeps there what else the file says beside its fields, and puts it back where it was. A field with
the metadata PLACE says where the file lies: it is given to `read`, and not written, because folders move. A file that
says no schema has UNMARKED, for the kinds that once were written so.

Every kind has a seal, a hash of all else that the file says, so that a change by hand or a flipped bit is an error. A
kind without one says why. Files of schemas before the seal are read, with a note.

Every kind has its JSON Schema in docs/schemas: a test says so, and that nothing else writes JSON or YAML.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, TypeAdapter
from pydantic.json_schema import SkipJsonSchema

from edgevit.records.documents import Reader, writer_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
MORE = "more"
UNMARKED = 0
RECORD = "record"  # key of a sealed file that names its kind
_WRITTEN = "written"
PLACE = {_WRITTEN: False}  # of a field that says where the file lies

More = SkipJsonSchema[dict[str, Any]]
Place = SkipJsonSchema[Path]


def _name_edgevit(versions: dict[str, str]) -> dict[str, str]:
    if "edgevit" not in versions:
        raise ValueError("it does not say which edgevit wrote the file")
    return versions


Versions = Annotated[dict[str, str], AfterValidator(_name_edgevit)]  # of edgevit, and of what it was made with


@dataclass(frozen=True)
class Seal:
    """A hash of all else that a file says, so that a change by hand is noticed.

    `marks` are keys that every sealed file has and no file before the seal: one that has them, and no hash, lost it.
    """

    since: int  # the first schema that has it
    key: str = "content_sha256"
    marks: tuple[str, ...] = (RECORD,)


@dataclass(frozen=True)
class RecordKind(Generic[T]):
    """One kind of file."""

    name: str  # of its JSON Schema in docs/schemas/
    record: type[T]
    reader: Reader
    schemas: tuple[int, ...]  # those that can be read; the last is written
    seal: Seal | None = Seal(since=1)

    @property
    def schema(self) -> int:
        return self.schemas[-1]

    @property
    def _says_kind(self) -> bool:
        return self.seal is not None and RECORD in self.seal.marks

    @property
    def _own(self) -> tuple[str, ...]:
        """What a file says that is of no record."""
        return ("schema", *[RECORD] * self._says_kind, *([] if self.seal is None else [self.seal.key]))

    def read(self, file: Path, **places: Path) -> T:
        """Read a file.

        Raises:
            self.reader.error: it is missing, damaged, altered, or of a schema that this edgevit does not know.
        """
        schemas = None if UNMARKED in self.schemas else self.schemas
        return self.checked(self.reader.json(file, dict[str, Any], schemas=schemas), str(file), **places)

    def checked(self, content: Mapping[str, Any], where: str, **places: Path) -> T:
        """Turn what a file says into its record; `where` names the file in messages."""
        given = {**content, **{name: str(path) for name, path in places.items()}}
        if UNMARKED in self.schemas:
            given = {"schema": UNMARKED, **given}
        own = {name: given.pop(name) for name in self._own if name in given}
        record = self.reader.checked({**own, **_moved(given, self.record)}, self.record, where, schemas=self.schemas)
        self._check_seal(content, where)
        return record

    def _check_seal(self, content: Mapping[str, Any], where: str) -> None:
        """Raise the reader's error if the file is not what was written; note a file of a schema before the seal."""
        if self.seal is None:
            return
        key, schema = self.seal.key, content.get("schema", UNMARKED)
        if self._says_kind and content.get(RECORD, self.name) != self.name:
            raise self.reader.error(
                f"{where} is the record of another kind, {str(content[RECORD])[:40]!r}, expected {self.name!r}; "
                f"{self.reader.mend}"
            )
        if schema < self.seal.since and key not in content:
            if newer := [mark for mark in self.seal.marks if mark in content]:
                raise self.reader.error(
                    f"{where} was altered: it says schema {schema} and no {key}, and has {newer[0]!r}, which came with "
                    f"it; {self.reader.mend}"
                )
            _note_unsealed(self.name, where, writer_of(content))
            return
        actual, expected = content_sha256(content, key), str(content.get(key) or "none")
        if actual != expected:
            raise self.reader.error(
                f"{where} was altered: the hash of what it says is {actual[:12]}, and it says {expected[:12]}; "
                f"{self.reader.mend}"
            )

    def content(self, record: T) -> dict[str, Any]:
        """What a file of this record says."""
        kind = {RECORD: self.name} if self._says_kind else {}
        return self.sealed({"schema": self.schema, **kind, **plain(record)})

    def sealed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The same with its seal renewed."""
        if self.seal is None:
            return dict(content)
        return {**content, self.seal.key: content_sha256(content, self.seal.key)}

    def text(self, record: T) -> str:
        return json.dumps(self.content(record), indent=2) + "\n"

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the files that are written now."""
        described = TypeAdapter(self.record).json_schema()
        own: dict[str, Any] = {"schema": {"const": self.schema, "type": "integer"}}
        if self._says_kind:
            own[RECORD] = {"const": self.name, "type": "string"}
        if self.seal is not None:
            own[self.seal.key] = {"pattern": "^[0-9a-f]{64}$", "type": "string"}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **described,
            "properties": {**own, **described["properties"]},
            "required": [*own, *described.get("required", ())],
        }


def content_sha256(content: Mapping[str, Any], key: str) -> str:
    """Hash all that a file says but `key`, however it is written down."""
    rest = {name: value for name, value in content.items() if name != key}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


_UNSEALED_NOTED: set[str] = set()  # kinds, so that many old folders are one note


def _note_unsealed(kind: str, where: str, version: str) -> None:
    level = logging.INFO if kind in _UNSEALED_NOTED else logging.WARNING
    _UNSEALED_NOTED.add(kind)
    logger.log(level, "%s is not sealed, written by %s: nothing shows whether it was altered", where, version)


def plain(value: Any) -> Any:
    """A record as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.metadata.get(_WRITTEN, True)}
        beside = shown.pop(MORE, {})
        return {**shown, **beside}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _moved(value: Any, kind: type) -> Any:
    """Move what a record has no field for into its field `more`, if it has that one; in the records within it, too."""
    if not isinstance(value, dict):
        return value
    inner = _inner(kind)
    known = {
        key: part if (record := inner[key]) is None else _moved(part, record)
        for key, part in value.items()
        if key in inner and key != MORE
    }
    rest = {key: part for key, part in value.items() if key not in inner or key == MORE}
    return {**known, MORE: rest} if MORE in inner else {**known, **rest}


@cache
def _inner(kind: type) -> dict[str, type | None]:
    """The fields of a record class, each with its own record class; typing takes a millisecond for one."""
    return {name: _record_of(hint) for name, hint in get_type_hints(kind).items()}


def _record_of(hint: Any) -> type | None:
    """The record class of a field of type `Record` or `Record | None`; None for all others, lists of records too."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    if get_origin(hint) in (tuple, list, dict):
        return None
    return next((kind for part in get_args(hint) if (kind := _record_of(part)) is not None), None)
