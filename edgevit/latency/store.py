"""The runs of all stacks, kept in the user's cache folder, so that nothing is measured twice.

There is a folder for each kind of block and each set of conditions. Runs are appended to one file as soon as they are
finished; a line that a crash truncated is ignored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgevit.agent.records import RecordError, Run
from edgevit.board.comparison import READER
from edgevit.derivation.cache import CacheEntry, derivations_folder
from edgevit.errors import RunsError
from edgevit.progress import Progress, Silent
from edgevit.records.kinds import More, RecordKind
from edgevit.records.lock import in_turn
from edgevit.records.writing import write_whole, writing
from edgevit.version import written_by

logger = logging.getLogger(__name__)

KEY, RUNS, ENGINES = "key.json", "runs.jsonl", "engines.json"


@dataclass(frozen=True)
class StoreKey:
    """key.json of measured costs: what the runs depend on. All but `edgevit` is hashed into the folder's name."""

    edgevit: str | None = None  # version of edgevit that used the folder last; None in keys that are compared
    family: str | None = None
    embed: int | None = None
    origin: dict[str, object] | None = None
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltEngines:
    """engines.json of measured costs: path on the board and hash of each engine there, by the stack's label."""

    engines: dict[str, tuple[str, str]]
    edgevit: str


# No seals: the folder is named by the hash of the key, and engines are known by their own hashes.
KEY_KIND = RecordKind("costs_key", StoreKey, READER, sealed=False)
ENGINES_KIND = RecordKind("costs_engines", BuiltEngines, READER, sealed=False)


def costs_folder() -> Path:
    """Return the folder of all stores: $XDG_CACHE_HOME/edgevit/costs, or ~/.cache/edgevit/costs."""
    return derivations_folder().with_name("costs")


def entries(folder: Path) -> list[CacheEntry]:
    """List the stores as `edgevit cache` shows them."""
    stores = []
    for key in sorted(folder.glob(f"*/{KEY}")):
        record = KEY_KIND.read(key)
        origin = record.origin or {}
        base = " ".join(str(part) for part in (record.family, record.embed) if part is not None)
        machine = origin.get("board") or origin.get("processor") or ""
        files = [file.stat() for file in key.parent.iterdir() if file.is_file()]
        size, used_s = sum(file.st_size for file in files), max(file.st_mtime for file in files)
        stores.append(CacheEntry(key.parent, "costs", base, f"{machine}, {origin.get('precision', '')}", size, used_s))
    return stores


def clear(folder: Path) -> list[CacheEntry]:
    """Remove all stores, and return what was there.

    Raises:
        OutputError: something cannot be removed.
    """
    removed = entries(folder)
    for entry in removed:
        with writing(entry.file):
            shutil.rmtree(entry.file)
    return removed


@dataclass(frozen=True)
class Store:
    """The runs that were measured under one `StoreKey`."""

    folder: Path

    @classmethod
    def of(cls, key: Mapping[str, Any], folder: Path | None = None) -> Store:
        """Return the store of a key of plain values.

        Raises:
            OutputError: it cannot be written.
        """
        text = json.dumps({"schema": KEY_KIND.schema, **key}, sort_keys=True)
        store = cls((folder or costs_folder()) / hashlib.sha256(text.encode()).hexdigest()[:16])
        with writing(store.folder):
            store.folder.mkdir(parents=True, exist_ok=True)
            if not store._is_of(key):
                logger.warning(
                    "%s holds runs of another key, or a damaged one: removed, and measured again", store.folder
                )
                shutil.rmtree(store.folder)
                store.folder.mkdir()
            write_whole(store.folder / KEY, KEY_KIND.text(_as_record(key)))
        return store

    def _is_of(self, key: Mapping[str, Any]) -> bool:
        """Whether the folder belongs to this key: folders can be moved."""
        file = self.folder / KEY
        if not file.exists():
            return True
        try:
            stated = KEY_KIND.read(file)
        except RunsError:
            return False
        return _plain(stated) == _plain(_as_record(key))

    @contextmanager
    def alone(self, progress: Progress | None = None) -> Iterator[None]:
        """Let one process at a time measure: another would slow it down, and measure the same."""
        note = (progress or Silent()).note
        waiting = partial(note, "waiting for another edgevit, which measures costs of such a base on this target")
        with writing(self.folder), in_turn(self.folder / "lock", waiting):
            yield

    def runs(self) -> list[Run]:
        """Read all runs."""
        if not (self.folder / RUNS).is_file():
            return []
        runs = []
        for _, line in READER.lines(self.folder / RUNS):
            try:
                runs.append(Run.from_dict(READER.parse(line, dict[str, object], RUNS)))
            except (RecordError, RunsError):
                continue  # truncated, or of another edgevit: measured again
        return runs

    def add(self, runs: Iterable[Run]) -> None:
        """Append runs.

        Raises:
            OutputError: they cannot be written.
        """
        file = self.folder / RUNS
        with writing(file), file.open("a", encoding="utf-8") as opened:
            is_truncated = opened.tell() > 0 and not file.read_bytes().endswith(b"\n")
            opened.write("\n" * is_truncated + "".join(run.to_json() + "\n" for run in runs))
            opened.flush()
            os.fsync(opened.fileno())

    def engines(self) -> dict[str, tuple[str, str]]:
        """Return path on the board and hash of each engine there, by the label of its stack."""
        file = self.folder / ENGINES
        if not file.is_file():
            return {}
        return ENGINES_KIND.read(file).engines

    def keep_engines(self, engines: Mapping[str, tuple[str, str]]) -> None:
        with writing(self.folder):
            write_whole(self.folder / ENGINES, ENGINES_KIND.text(BuiltEngines(dict(engines), written_by())))


def _plain(record: StoreKey) -> str:
    """Return what identifies a key, as JSON."""
    return json.dumps(KEY_KIND.content(replace(record, edgevit=None)), sort_keys=True)


def _as_record(key: Mapping[str, Any]) -> StoreKey:
    named = {name: key.get(name) for name in ("family", "embed", "origin")}
    return StoreKey(written_by(), **named, more={name: value for name, value in key.items() if name not in named})
