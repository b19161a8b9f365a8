"""Files for a machine that does not see the folder of the command, and those that come home from it.

All paths are relative to that folder, as a plan names them. On the machine a job has a folder of its own in the cache,
and finds its files there under the same paths. What it has written or removed is written or removed at home.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from edgevit.errors import JobsError
from edgevit.records.lock import in_turn, in_use, is_held
from edgevit.records.writing import cache_folder, file_sha256, new_folder, writing

LARGEST_BYTES = 10**9  # largest input that is sent
INPUTS_BYTES = 20 * 10**9  # space for inputs that a node keeps
SHA256_DIGITS = 64  # digits of the hash in the name of an input's folder
SENT = "sent"  # folder of the cache with inputs and the folders of jobs


@dataclass(frozen=True)
class Input:
    """A file or folder that a job reads, which many jobs may share."""

    path: str
    bytes: int  # size; above LARGEST_BYTES it is a lower bound
    sha256: str = ""  # hash of the packed file or folder; empty: it is too large to pack
    content: Any = None  # Ray's reference to the packed bytes; None: they are too large to send


@dataclass(frozen=True)
class Outputs:
    """Files and folders that a job writes, as they are at home."""

    paths: tuple[str, ...]
    hashes: Mapping[str, str]  # sha256 of each file, by its path
    content: bytes


def is_inside(path: str) -> bool:
    """Whether a path names something in the folder of the command, by being relative to it."""
    normal = os.path.normpath(path)
    return not (os.path.isabs(normal) or normal in (".", "..") or normal.startswith("../"))


def input_bytes(path: str) -> int:
    """The bytes of a file or a folder; counting ends beyond LARGEST_BYTES."""
    total = 0
    for file in _files([path], Path()):
        total += os.stat(file).st_size
        if total > LARGEST_BYTES:
            break
    return total


def packed_files(files: Sequence[str], folder: Path) -> bytes:
    """Pack files, named relative to a folder; equal files give equal bytes."""
    packed = io.BytesIO()
    with ZipFile(packed, "w") as opened:
        for file in files:
            with opened.open(ZipInfo(file), "w", force_zip64=True) as into, (folder / file).open("rb") as content:
                shutil.copyfileobj(content, into)
    return packed.getvalue()


def packed_input(path: str) -> bytes:
    """Pack an input of this machine."""
    return packed_files(sorted(_files([path], Path())), Path())


def outputs_at_home(paths: Sequence[str]) -> Outputs:
    """Read the outputs of a job that exist here."""
    files = sorted(_files(paths, Path()))
    return Outputs(tuple(paths), {file: file_sha256(Path(file)) for file in files}, packed_files(files, Path()))


def _files(paths: Sequence[str], folder: Path) -> Iterator[str]:
    """The files at some paths, relative to a folder; those that are written at the moment are left out."""
    for path in paths:
        if (folder / path).is_file():
            yield path
        for parent, _, names in os.walk(folder / path, followlinks=True):
            for name in names:
                if not name.endswith((".tmp", ".part", ".lock")):
                    yield os.path.relpath(os.path.join(parent, name), folder)


def unpack_each(content: bytes, folder: Path) -> None:
    """Unpack files into a folder, each of them whole.

    Raises:
        OutputError: they cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder) as temporary:
            with ZipFile(io.BytesIO(content)) as packed:
                packed.extractall(temporary)
            for file in _files(["."], Path(temporary)):
                Path(temporary, file).replace(folder / file)


# -- on the other machine ----------------------------------------------------------------------------------------------


def job_folder(home: str, job: str) -> Path:
    """The folder of a job of the command that was started in `home`, which is a host and a path."""
    return cache_folder(SENT) / "jobs" / hashlib.sha256(home.encode()).hexdigest()[:16] / job


def place_input(received: Input, folder: Path, home: str, node: str, get: Any, used: ExitStack) -> None:
    """Make an input appear in the folder of a job; one that is too large has to lie where it lies at home.

    Args:
        get: gives the packed content of a reference.
        used: keeps the input from being removed until it is closed.

    Raises:
        JobsError: it is too large to be sent, and is not there.
        OutputError: it cannot be written, as on a full disk.
    """
    target = folder / received.path
    if target.exists() and not target.is_symlink():
        return  # it lies in another input
    if received.content is None:
        source = Path(home, received.path)
        if not source.exists():
            raise JobsError(
                f"{node} does not see {source}, which has more than the {LARGEST_BYTES / 1e9:g} GB that are sent to a "
                "node; copy it there, or put it where all nodes see it"
            )
    else:
        store = cache_folder(SENT) / "inputs" / received.sha256
        with writing(store):
            store.parent.mkdir(parents=True, exist_ok=True)
            with in_turn(store.with_suffix(".lock")):
                if not store.exists():
                    with new_folder(store) as temporary, ZipFile(io.BytesIO(get(received.content))) as packed:
                        packed.extractall(temporary)
                used.enter_context(in_use(store))
                os.utime(store)
            with suppress(FileNotFoundError):  # another process removes them, too
                _trim(store.parent)
        source = store / received.path
    with writing(target):
        target.unlink(missing_ok=True)  # a file of an earlier try
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def _trim(folder: Path) -> None:
    """Remove the least recently used inputs beyond the limit, but none that a job uses."""
    stores = [path for path in folder.iterdir() if len(path.name) == SHA256_DIGITS]
    total = 0
    for store in sorted(stores, key=lambda path: -path.stat().st_mtime):
        total += input_bytes(str(store))
        if total > INPUTS_BYTES:
            with in_turn(store.with_suffix(".lock")):
                if is_held(store) is False:
                    shutil.rmtree(store)


def place_outputs(outputs: Outputs, folder: Path) -> None:
    """Write what is at home of the outputs of a job into its folder."""
    with writing(folder), ZipFile(io.BytesIO(outputs.content)) as packed:
        packed.extractall(folder)


@dataclass(frozen=True)
class Changes:
    """What a job wrote and removed of its outputs."""

    content: bytes
    removed: tuple[str, ...]


def changes_of(outputs: Outputs, folder: Path) -> Changes:
    """Compare the outputs in the folder of a job with those at home."""
    hashes = {file: file_sha256(folder / file) for file in sorted(_files(outputs.paths, folder))}
    changed = [file for file, sha256 in hashes.items() if outputs.hashes.get(file) != sha256]
    return Changes(packed_files(changed, folder), tuple(file for file in outputs.hashes if file not in hashes))


# -- at home again -----------------------------------------------------------------------------------------------------


def bring_home(changes: Changes, outputs: Outputs) -> None:
    """Write the changes of a job; a folder that is new appears whole, and the last of the outputs after the others.

    Raises:
        OutputError: they cannot be written.
    """
    home = Path(outputs.paths[-1]).parent
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".sent", suffix=".tmp", dir=home) as temporary:
            with ZipFile(io.BytesIO(changes.content)) as packed:
                packed.extractall(temporary)
            for path in outputs.paths:
                arrived, target = Path(temporary, path), Path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if arrived.is_dir() and not target.exists():
                    arrived.rename(target)
                    continue
                for file in sorted(_files([path], Path(temporary))):
                    Path(file).parent.mkdir(parents=True, exist_ok=True)
                    Path(temporary, file).replace(file)
        for file in changes.removed:
            with suppress(FileNotFoundError):
                os.unlink(file)
