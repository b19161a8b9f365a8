"""What a derivation worked out and another can use again: files under the user's cache folder, named by content hash.

An entry's name is the hash of everything that it depends on: the base's weights, the images themselves, options. So an
entry is never out of date, only unused; the least recently used go first when there are too many. An entry states the
whole hash of its key, and one of its content. An entry that cannot be read, that is of another key, or that another
version of edgevit or of torch made, is worked out again, with a warning.
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
from edgevit.network.checkpoint import tensors_sha256
from edgevit.progress import Progress, Silent
from edgevit.records.lock import in_turn
from edgevit.records.writing import writing
from edgevit.version import processor, written_by

SCHEMA = "11"  # of the entries
MADE_BY = f"edgevit {edgevit.__version__} with torch {torch.__version__}, schema {SCHEMA}"
KILLED_S = 3600.0  # no entry is written for so long
LIMIT_BYTES = 20 * 10**9
STREAMS = "streams"  # the largest entries, and the soonest worked out again: they may take half of the limit

Tensors = dict[str, Tensor]


def derivations_folder() -> Path:
    """Where entries are: $XDG_CACHE_HOME/edgevit/derivation, or ~/.cache/edgevit/derivation."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "edgevit" / "derivation"


@contextmanager
def shared_cache(asked: bool | Path) -> Iterator[bool | Path]:
    """Where several derivations share their work: the cache that is asked for, else a folder for that time alone."""
    if asked:
        yield asked
    else:
        with tempfile.TemporaryDirectory(prefix="edgevit-cache-") as folder:
            yield Path(folder)


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache."""

    file: Path
    what: str
    base: str  # of the derivation that made it, as its user named it; "" where an older edgevit did not say
    task: str
    bytes: int
    used_s: float  # seconds since the epoch


def entries(folder: Path) -> list[CacheEntry]:
    """What the cache holds, last used first."""
    found = []
    for file in folder.glob("*.safetensors"):
        with suppress(FileNotFoundError):  # another process has just made room
            facts, told = file.stat(), _told(file)
            what, base, task = file.stem.rpartition("-")[0], told.get("base", ""), told.get("task", "")
            found.append(CacheEntry(file, what, base, task, facts.st_size, facts.st_mtime))
    return sorted(found, key=lambda entry: -entry.used_s)


def _told(file: Path) -> dict[str, str]:
    """The metadata of an entry: what made it, of which base and task; empty if it cannot be read."""
    try:
        check_regular(str(file))
        with safe_open(file, "pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def clear(folder: Path) -> list[CacheEntry]:
    """Remove every entry; return what was there."""
    gone = entries(folder)
    with writing(folder):
        for file in folder.glob("*"):
            if file.is_dir() and not file.is_symlink():  # of a process that was killed while it wrote an entry
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)
    return gone


def _trim(folder: Path, limit_bytes: int) -> None:
    """Remove the least recently used entries beyond the limit, and what a process left that was killed as it wrote."""
    for private in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - private.stat().st_mtime > KILLED_S:
                shutil.rmtree(private, ignore_errors=True)
    held = streams = 0
    for entry in entries(folder):
        held += entry.bytes
        if entry.what == STREAMS:
            streams += entry.bytes
        if held > limit_bytes or (entry.what == STREAMS and streams > limit_bytes // 2):
            entry.file.unlink(missing_ok=True)


class _Unusable(Exception):
    """Why an entry that is there cannot be used."""


def _read(file: Path, key_sha256: str) -> Tensors:
    """Read an entry and check that it is whole, and of this key.

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


def _key_sha256(what: str, key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([what, key], sort_keys=True).encode()).hexdigest()


@dataclass
class Cache:
    """Entries in one folder; with `folder` None everything is worked out anew."""

    folder: Path | None
    progress: Progress = field(default_factory=Silent)
    limit_bytes: int = LIMIT_BYTES
    base: str = ""  # what this derivation is of, in words for people
    task: str = ""
    reused: list[str] = field(default_factory=list)  # what this derivation did not have to work out
    made: set[Path] = field(default_factory=set)  # what it worked out
    blocked: set[str] = field(default_factory=set)  # why entries were not kept, as it was told

    @property
    def streams_bytes(self) -> int:
        """What streams may take."""
        return self.limit_bytes // 2

    def tensors(self, what: str, key: Mapping[str, Any], make: Callable[[], Tensors]) -> Tensors:
        """Return the entry of this key, or make it and keep it.

        Args:
            what: a word for it, for people. `key` is all that `make` depends on, as plain values.
        """
        if (file := self._file(what, key)) is None:
            return make()
        key_sha256 = _key_sha256(what, key)
        with self._alone(file):
            if (found := self._find(what, file, key_sha256)) is not None:
                return found
            made = {name: t.detach().cpu().contiguous() for name, t in make().items()}
            self._keep(file, made, key_sha256)
            self.made.add(file)
            return made

    def holds(self, what: str, key: Mapping[str, Any]) -> bool:
        """Whether there is an entry of this key; it may yet turn out to be damaged."""
        file = self._file(what, key)
        return file is not None and file.is_file()

    def _file(self, what: str, key: Mapping[str, Any]) -> Path | None:
        name = f"{what}-{_key_sha256(what, key)[:32]}.safetensors"
        return None if self.folder is None else self.folder / name

    def _find(self, what: str, file: Path, key_sha256: str) -> Tensors | None:
        if not file.is_file():
            return None
        try:
            found = _read(file, key_sha256)
        except _Unusable as why:
            self.progress.warn(f"cached {what} not used: {why}; working it out again")
            return None
        with suppress(OSError):  # of a folder that may only be read; or another process has just made room
            os.utime(file, follow_symlinks=False)  # it was used just now
        if file not in self.made:
            self._tell(what, _told(file).get("processor", processor()))
        return found

    def _tell(self, what: str, made_on: str) -> None:
        """Say once that an entry is used, and on which processor it was worked out if not on one of this kind."""
        elsewhere = made_on != processor()
        name = f"{what} (worked out on {made_on})" if elsewhere else what
        if name in self.reused:
            return
        self.reused.append(name)
        differs = ": results may differ from those with --no-cache in last bits, and by that in widths" * elsewhere
        self.progress.note(f"reusing {name} from the cache{differs}")

    def _keep(self, file: Path, tensors: Tensors, key_sha256: str) -> None:
        """Write an entry so that it is there whole or not at all; a full disk costs the entry, not the derivation."""
        # A path may hold bytes that are no text.
        base, task = (text.encode("utf-8", "backslashreplace").decode() for text in (self.base, self.task))
        told = {"made_by": MADE_BY, "sha256": tensors_sha256(tensors), "base": base, "task": task}
        told["key_sha256"] = key_sha256
        told["processor"] = processor()  # sums are rounded otherwise on others
        told["edgevit"] = written_by()  # for people; an entry is good for every commit of the version that made it
        try:
            folder = file.parent
            # The folder is private: under a name that can be guessed, others could put a link to any file beforehand.
            with writing(folder), tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder) as private:
                temporary = Path(private, file.name)
                save_file(tensors, temporary, told)
                temporary.replace(file)
                _trim(folder, self.limit_bytes)
        except OutputError as error:
            if (why := str(error)) not in self.blocked:  # the next entries will not be kept either
                self.blocked.add(why)
                self.progress.warn(f"not cached: {why}")

    @contextmanager
    def _alone(self, file: Path) -> Iterator[None]:
        """Let one process at a time work out an entry, so that derivations side by side share the work."""
        with ExitStack() as held:
            # A folder that cannot be written to (`_keep` says so), or a lock that is a link: each works it out alone.
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(in_turn(file.with_suffix(".lock")))
            yield
