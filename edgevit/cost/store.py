"""Every run of every stack, kept under the user's cache folder, so that nothing is measured twice.

A folder per kind of figures: what a base's blocks are made of, and where and how stacks of them were measured. Runs are
appended to one file as soon as they are made; a line that a crash cut off is left out when they are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgevit.agent.records import RecordError, Run
from edgevit.derive.cache import Entry, cache_folder
from edgevit.errors import RunsError
from edgevit.folder.lock import in_turn
from edgevit.folder.writing import write_whole, writing
from edgevit.report.runs import READER

SCHEMA = 1  # of what a key says
KEY, RUNS, ENGINES = "key.json", "runs.jsonl", "engines.json"


def costs_folder() -> Path:
    """Where all of them are: $XDG_CACHE_HOME/edgevit/costs, or ~/.cache/edgevit/costs."""
    return cache_folder().with_name("costs")


def entries(folder: Path) -> list[Entry]:
    """What is kept, as `edgevit cache` shows it: an entry for each key."""
    found = []
    for key in sorted(folder.glob(f"*/{KEY}")):
        told = READER.json(key, dict[str, Any])
        where = told.get("where") or {}
        base = " ".join(str(told[name]) for name in ("family", "embed") if name in told)
        there = where.get("board") or where.get("processor") or ""
        files = [file.stat() for file in key.parent.iterdir() if file.is_file()]
        size, used_s = sum(file.st_size for file in files), max(file.st_mtime for file in files)
        found.append(Entry(key.parent, "costs", base, f"{there}, {where.get('precision', '')}", size, used_s))
    return found


def clear(folder: Path) -> list[Entry]:
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
        told = json.dumps({"schema": SCHEMA, **key}, sort_keys=True)
        store = cls((folder or costs_folder()) / hashlib.sha256(told.encode()).hexdigest()[:16])
        with writing(store.folder):
            store.folder.mkdir(parents=True, exist_ok=True)
            write_whole(store.folder / KEY, told + "\n")
        return store

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one process at a time measure: another would slow it, and measure the same."""
        with writing(self.folder), in_turn(self.folder / "lock"):
            yield

    def runs(self) -> list[Run]:
        """All that was measured."""
        if not (self.folder / RUNS).is_file():
            return []
        found = []
        for line in READER.text(self.folder / RUNS).splitlines():
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
        return READER.json(file, dict[str, tuple[str, str]])

    def keep_engines(self, engines: Mapping[str, tuple[str, str]]) -> None:
        with writing(self.folder):
            write_whole(self.folder / ENGINES, json.dumps(engines, indent=2) + "\n")
