"""Every run of every stack, kept under the user's cache folder, so that nothing is measured twice.

A folder per kind of figures: what a base's blocks are made of, and where and how stacks of them were measured. Runs are
appended to one file as soon as they are made; a line that a crash cut off is left out when they are read.
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
    """key.json of measured costs: what the runs depend on; all but `edgevit` is in the hash that names the folder."""

    edgevit: str | None = None  # version that used the folder last; None: it does not count in a comparison
    family: str | None = None
    embed: int | None = None
    where: dict[str, Any] | None = None
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltEngines:
    """engines.json of measured costs: path on the board and hash of each engine built there, by the stack's label."""

    engines: dict[str, tuple[str, str]]
    edgevit: str


# No seals: the folder is named by the hash of the key, and engines are known by their own hashes.
KEY_KIND = RecordKind("costs_key", StoreKey, READER, sealed=False)
ENGINES_KIND = RecordKind("costs_engines", BuiltEngines, READER, sealed=False)


def costs_folder() -> Path:
    """Where all of them are: $XDG_CACHE_HOME/edgevit/costs, or ~/.cache/edgevit/costs."""
    return derivations_folder().with_name("costs")


def entries(folder: Path) -> list[CacheEntry]:
    """What is kept, as `edgevit cache` shows it: an entry for each key."""
    found = []
    for key in sorted(folder.glob(f"*/{KEY}")):
        told = KEY_KIND.read(key)
        where = told.where or {}
        base = " ".join(str(part) for part in (told.family, told.embed) if part is not None)
        there = where.get("board") or where.get("processor") or ""
        files = [file.stat() for file in key.parent.iterdir() if file.is_file()]
        size, used_s = sum(file.st_size for file in files), max(file.st_mtime for file in files)
        found.append(CacheEntry(key.parent, "costs", base, f"{there}, {where.get('precision', '')}", size, used_s))
    return found


def clear(folder: Path) -> list[CacheEntry]:
    """Remove all that is kept; return what was there.

    Raises:
        OutputError: something cannot be removed.
    """
    gone = entries(folder)
    for entry in gone:
        with writing(entry.file):
            shutil.rmtree(entry.file)
    return gone


@dataclass(frozen=True)
class Store:
    """The runs of one key."""

    folder: Path

    @classmethod
    def of(cls, key: Mapping[str, Any], folder: Path | None = None) -> Store:
        """The store of a key, which is plain values.

        Raises:
            OutputError: it cannot be written.
        """
        told = json.dumps({"schema": KEY_KIND.schema, **key}, sort_keys=True)
        store = cls((folder or costs_folder()) / hashlib.sha256(told.encode()).hexdigest()[:16])
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
        """Whether the key that the folder states, if it states one, is this one: folders can change places."""
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
        """Let one process at a time measure: another would slow it, and measure the same."""
        told = progress or Silent()
        waiting = partial(told.note, "waiting for another edgevit, which measures costs of such a base at this target")
        with writing(self.folder), in_turn(self.folder / "lock", waiting):
            yield

    def runs(self) -> list[Run]:
        """All that was measured."""
        if not (self.folder / RUNS).is_file():
            return []
        found = []
        for _, line in READER.lines(self.folder / RUNS):
            try:
                found.append(Run.from_dict(READER.parse(line, dict[str, Any], RUNS)))
            except (RecordError, RunsError):
                continue  # cut off, or of another edgevit: measured again
        return found

    def add(self, runs: Iterable[Run]) -> None:
        """Append runs.

        Raises:
            OutputError: they cannot be written.
        """
        file = self.folder / RUNS
        with writing(file), file.open("a", encoding="utf-8") as opened:
            cut_off = opened.tell() > 0 and not file.read_bytes().endswith(b"\n")
            opened.write("\n" * cut_off + "".join(run.to_json() + "\n" for run in runs))
            opened.flush()
            os.fsync(opened.fileno())

    def engines(self) -> dict[str, tuple[str, str]]:
        """Path on the board and hash of the engines that were built there, by the labels of their stacks."""
        file = self.folder / ENGINES
        if not file.is_file():
            return {}
        return ENGINES_KIND.read(file).engines

    def keep_engines(self, engines: Mapping[str, tuple[str, str]]) -> None:
        with writing(self.folder):
            write_whole(self.folder / ENGINES, ENGINES_KIND.text(BuiltEngines(dict(engines), written_by())))


def _plain(record: StoreKey) -> str:
    """What decides, as JSON has it."""
    return json.dumps(KEY_KIND.content(replace(record, edgevit=None)), sort_keys=True)


def _as_record(key: Mapping[str, Any]) -> StoreKey:
    named = {name: key.get(name) for name in ("family", "embed", "where")}
    return StoreKey(written_by(), **named, more={name: value for name, value in key.items() if name not in named})
