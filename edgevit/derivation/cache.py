"""Cache results that several derivations can use: files under the user's cache folder, named by content hash.

An entry's name is the hash of everything it depends on: the base's weights, the images themselves, options. So an entry
never becomes stale; the least recently used entries are removed when there are too many. An entry states the whole hash
of its key and of its content. An entry that cannot be read, belongs to another key, or comes from another version of
edgevit or torch is computed again, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import edgevit
from edgevit.agent.files import check_regular
from edgevit.errors import OutputError
from edgevit.network.model import tensors_sha256
from edgevit.progress import Progress, Silent
from edgevit.records.lock import in_turn
from edgevit.records.writing import cache_folder, writing
from edgevit.version import processor, written_by

_SCHEMA = "13"  # version of the entries' content
MADE_BY = f"edgevit {edgevit.__version__} with torch {torch.__version__}, schema {_SCHEMA}"
KILLED_S = 3600.0  # no entry is written for so long
LIMIT_BYTES = 20 * 10**9
_FROM_PYTHON = "given from Python"  # what the listing shows as the base of modules and images that came from Python
STREAMS = "streams"  # the largest entries, and the quickest to compute again: they may use half of the limit

Tensors = dict[str, Tensor]


def derivations_folder() -> Path:
    """The folder of entries in the user's cache."""
    return cache_folder("derivation")


@contextmanager
def shared_cache(requested: bool | Path) -> Iterator[bool | Path]:
    """The cache that several derivations share: the requested one, or else a temporary folder."""
    if requested:
        yield requested
    else:
        with tempfile.TemporaryDirectory(prefix="edgevit-cache-") as folder:
            yield Path(folder)


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache."""

    file: Path
    kind: str
    base: str  # name of the base, as the user of the derivation that made the entry gave it
    task: str
    bytes: int
    used_s: float  # time of the last use, in seconds since the epoch


def entries(folder: Path) -> list[CacheEntry]:
    """List the entries of a cache, the last used first."""
    listing = []
    for file in folder.glob("*.safetensors"):
        with suppress(FileNotFoundError):  # another process has just made room
            status, metadata = file.stat(), _metadata(file)
            kind, base, task = file.stem.rpartition("-")[0], metadata.get("base", ""), metadata.get("task", "")
            listing.append(CacheEntry(file, kind, base, task, status.st_size, status.st_mtime))
    return sorted(listing, key=lambda entry: -entry.used_s)


def _metadata(file: Path) -> dict[str, str]:
    """The metadata of an entry: version, base and task; empty if it cannot be read."""
    try:
        check_regular(str(file))
        with safe_open(file, "pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def clear(folder: Path) -> list[CacheEntry]:
    """Remove every entry; return the removed ones."""
    removed = entries(folder)
    with writing(folder):
        for file in folder.glob("*"):
            if file.is_dir() and not file.is_symlink():  # left by a process that was killed while it wrote an entry
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)
    return removed


def folders(*, clear: bool = False) -> list[CacheEntry]:
    """List the folders of what Python gave, of unpacked data, and of what a fleet sent here; remove them if asked."""
    listing = []
    python = (("modules", _FROM_PYTHON), ("images", _FROM_PYTHON))
    for part, base in (*python, ("unpacked", "unpacked data"), ("sent", "sent by a fleet")):
        for folder in sorted(path for path in cache_folder(part).glob("[!.]*") if path.is_dir()):
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            listing.append(CacheEntry(folder, part, base, "", size, folder.stat().st_mtime))
        if clear:
            shutil.rmtree(cache_folder(part), ignore_errors=True)
    return listing


def _trim(folder: Path, limit_bytes: int) -> None:
    """Remove the least recently used entries beyond the limit, and files that a killed process left half written."""
    for private in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - private.stat().st_mtime > KILLED_S:
                shutil.rmtree(private, ignore_errors=True)
    total = streams = 0
    for entry in entries(folder):
        total += entry.bytes
        if entry.kind == STREAMS:
            streams += entry.bytes
        if total > limit_bytes or (entry.kind == STREAMS and streams > limit_bytes // 2):
            entry.file.unlink(missing_ok=True)


class _Unusable(Exception):
    """An entry exists but cannot be used; the message is the reason."""


def _read(file: Path, key_sha256: str) -> Tensors:
    """Read an entry and check its content and its key.

    Raises:
        _Unusable: it is damaged, of another version, or of another key.
    """
    try:
        check_regular(str(file))
        with safe_open(file, "pt") as opened:
            facts = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
        content_sha256 = tensors_sha256(tensors)
    # The last ones come from tensors of a type that torch or numpy does not have.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _Unusable(f"it cannot be read ({(str(error).splitlines() or ['?'])[0][:80]})") from error
    if facts.get("made_by") != MADE_BY:
        raise _Unusable(f"it was made by {facts.get('made_by', 'an older edgevit')}, and this is {MADE_BY}")
    if facts.get("sha256") != content_sha256:
        raise _Unusable("its content does not match its hash")
    if facts.get("key_sha256") != key_sha256:
        raise _Unusable("it is the entry of another key, under this one's name")
    return tensors


def _key_sha256(kind: str, key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([kind, key], sort_keys=True).encode()).hexdigest()


@dataclass
class Cache:
    """Entries in one folder; with `folder` None everything is computed again."""

    folder: Path | None
    progress: Progress = field(default_factory=Silent)
    limit_bytes: int = LIMIT_BYTES
    base: str = ""  # name of this derivation's base, which its entries state for people
    task: str = ""
    reused: list[str] = field(default_factory=list)  # kinds of entries that this derivation took from the cache
    computed: set[Path] = field(default_factory=set)  # files of the entries that this derivation computed
    blocked: set[str] = field(default_factory=set)  # reasons why entries were not written, each reported once

    @property
    def streams_bytes(self) -> int:
        """The share of the limit for streams."""
        return self.limit_bytes // 2

    def tensors(self, kind: str, key: Mapping[str, Any], make: Callable[[], Tensors]) -> Tensors:
        """Return the entry of this key, or make and store it.

        Args:
            kind: a word for it, for people.
            key: everything that `make` depends on, as plain values.
        """
        if (file := self._file(kind, key)) is None:
            return make()
        key_sha256 = _key_sha256(kind, key)
        with self._alone(file):
            if (entry := self._find(kind, file, key_sha256)) is not None:
                return entry
            tensors = {name: t.detach().cpu().contiguous() for name, t in make().items()}
            self._store(file, tensors, key_sha256)
            self.computed.add(file)
            return tensors

    def has(self, kind: str, key: Mapping[str, Any]) -> bool:
        """Whether there is an entry of this key; it may still be damaged."""
        file = self._file(kind, key)
        return file is not None and file.is_file()

    def _file(self, kind: str, key: Mapping[str, Any]) -> Path | None:
        name = f"{kind}-{_key_sha256(kind, key)[:32]}.safetensors"
        return None if self.folder is None else self.folder / name

    def _find(self, kind: str, file: Path, key_sha256: str) -> Tensors | None:
        if not file.is_file():
            return None
        try:
            tensors = _read(file, key_sha256)
        except _Unusable as error:
            self.progress.warn(f"cached {kind} not used: {error}; working it out again")
            return None
        with suppress(OSError):  # the folder may only be read, or another process has just made room
            os.utime(file, follow_symlinks=False)  # it was used just now
        if file not in self.computed:
            self._report(kind, _metadata(file).get("processor", processor()))
        return tensors

    def _report(self, kind: str, made_on: str) -> None:
        """Report once that an entry is used, and the processor that computed it if it is not of this kind."""
        elsewhere = made_on != processor()
        name = f"{kind} (worked out on {made_on})" if elsewhere else kind
        if name in self.reused:
            return
        self.reused.append(name)
        differs = ": results may differ from those with --no-cache in last bits, and by that in widths" * elsewhere
        self.progress.note(f"reusing {name} from the cache{differs}")

    def _store(self, file: Path, tensors: Tensors, key_sha256: str) -> None:
        """Write an entry whole or not at all; on a full disk the derivation goes on without it."""
        # A path may hold bytes that are no text.
        base, task = (text.encode("utf-8", "backslashreplace").decode() for text in (self.base, self.task))
        metadata = {"made_by": MADE_BY, "sha256": tensors_sha256(tensors), "base": base, "task": task}
        metadata["key_sha256"] = key_sha256
        metadata["processor"] = processor()  # sums are rounded otherwise on others
        metadata["edgevit"] = written_by()  # for people; an entry is good for every commit of the version that made it
        try:
            folder = file.parent
            # The folder is private: under a name that can be guessed, others could put a link to any file beforehand.
            with writing(folder), tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder) as private:
                temporary = Path(private, file.name)
                save_file(tensors, temporary, metadata)
                temporary.replace(file)
                _trim(folder, self.limit_bytes)
        except OutputError as error:
            if (reason := str(error)) not in self.blocked:  # the next entries will not be written either
                self.blocked.add(reason)
                self.progress.warn(f"not cached: {reason}")

    @contextmanager
    def _alone(self, file: Path) -> Iterator[None]:
        """Let one process at a time compute an entry, so that concurrent derivations share the work."""
        with ExitStack() as stack:
            # In a read-only folder (`_store` reports it), or where the lock is a link, each process computes it alone.
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(in_turn(file.with_suffix(".lock")))
            yield
