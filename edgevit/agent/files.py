"""The cache on the board: files from the host, kept under the hash of their content, and the folders of jobs."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from typing import BinaryIO, Sequence

from .messages import Send
from .runners import RunnerError


def cache_folder() -> str:
    """The folder of edgevit's files on this machine; the host's shell commands name the same."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "edgevit")


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_regular(path: str) -> None:
    """See that opening and reading a path neither waits for another program nor goes on without end.

    Raises: OSError (it is missing, or no regular file).
    """
    mode = os.stat(path).st_mode
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", path)


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading.

    Raises: OSError (also of a pipe, a device or a folder).
    """
    check_regular(path)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def size(send: Send, root: str, path: str) -> dict[str, object]:
    return {"bytes": os.path.getsize(path) if os.path.isfile(path) else None}


# Size, time and place on disk of the files whose content was found to be right: an agent serves one session.
_right: dict[str, tuple[int, int, int]] = {}


def offer(send: Send, root: str, path: str, part: str, sha256: str) -> dict[str, object]:
    """Say whether a file is there whole, and how much space is free, without what a broken upload left in `part`."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise RunnerError(f"{error.filename or folder} is no folder, and files are kept there; remove it") from error
    with suppress(FileNotFoundError):
        os.remove(part)
    disk = os.statvfs(folder)
    return {"present": _is_right(path, sha256), "free_bytes": disk.f_bavail * disk.f_frsize}


def _is_right(path: str, sha256: str) -> bool:
    """Whether the content is what the name promises: read once in a session, and again when the file was touched."""
    if not os.path.isfile(path):
        return False
    status = os.stat(path)
    mark = (status.st_size, status.st_mtime_ns, status.st_ino)
    if _right.get(path) != mark:
        if sha256_of(path) != sha256:
            return False
        _right[path] = mark
    return True


def keep(send: Send, root: str, path: str, part: str, sha256: str) -> dict[str, object]:
    """Give an upload its name, now that its content is known to be whole."""
    digest = sha256_of(part)
    if digest != sha256:
        os.remove(part)
        raise RunnerError(f"the upload of {path} arrived altered: its sha256 is {digest[:12]}..., not {sha256[:12]}...")
    os.replace(part, path)
    return {"path": path}


def discard(send: Send, root: str, paths: Sequence[str]) -> dict[str, object]:
    """Remove files that the host has no more use for; of this cache alone."""
    folder = os.path.join(cache_folder(), "files")
    for path in paths:
        if os.path.dirname(os.path.abspath(path)) == os.path.abspath(folder):
            with suppress(FileNotFoundError):
                os.remove(path)
    return {}


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
