"""One job at a time on a board, whoever asks: a lock file that says who holds it and since when.

The kernel's lock on the file decides, and ends with the process that holds it; what the file says is for people. So
what a holder left that died is known for what it is: it is there, and nobody holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from .files import cache_folder
from .runners import RunnerError

FOLDERS = ("/run/lock", "/tmp")
POLL_S = 0.2
SAY_EVERY_S = 10.0  # while nothing changes


@contextmanager
def hold(path: str | None, owner: str, method: str, report: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Wait for the board, and hold it while the block runs. `path` is a lock of another name, None the board's own.

    Who holds the board meanwhile is reported as `{"stage": "wait", "holder": {...}}`, and a holder that died as
    `{"stage": "wait", "stale": {...}}`; both have an age, because the clocks of boards are often wrong.
    """
    lock = _open_any([path] if path else [os.path.join(folder, "edgevit.lock") for folder in FOLDERS])
    try:
        _wait(lock, report)
        stale = _read(lock)
        if stale:
            report({"stage": "wait", "done": 1.0, "stale": stale})
        _write(lock, json.dumps({"owner": owner, "method": method, "pid": os.getpid(), "since": time.time()}))
        try:
            yield
        finally:
            _write(lock, "")
    finally:
        os.close(lock)


def lock_path(root: str) -> str | None:
    """A captured tree is a board of its own, and nothing is written into it."""
    return None if root == "/" else os.path.join(cache_folder(), "lock")


def _wait(lock: int, report: Callable[[dict[str, Any]], None]) -> None:
    told, said = None, 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _read(lock)
        identity = holder and (holder["owner"], holder["method"], holder["pid"])
        if identity != told or time.monotonic() - said > SAY_EVERY_S:
            told, said = identity, time.monotonic()
            report({"stage": "wait", "done": 0.0, "holder": holder})
        time.sleep(POLL_S)


def _open_any(paths: list[str]) -> int:
    """Open the first lock file that is there; else make the first that can be made."""
    for flags in (0, os.O_CREAT | os.O_EXCL):
        for path in paths:
            try:
                lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o666)
            except FileExistsError:
                return _open_any(paths)  # made by another this very moment
            except OSError as error:
                if error.errno == errno.ENOENT or (flags and path != paths[-1]):
                    continue
                raise RunnerError(f"cannot lock the board: {path}: {error.strerror}; remove that file") from error
            if flags:
                os.fchmod(lock, 0o666)  # whatever the umask is: other users take turns with us
            return lock
    raise RunnerError(f"cannot lock the board: no {' and no '.join(map(os.path.dirname, paths))} to keep the file in")


def _read(lock: int) -> dict[str, Any] | None:
    """Return what the holder wrote and its age in seconds; None while it says nothing that can be read."""
    try:
        content = json.loads(os.pread(lock, 4096, 0))
        age = max(0.0, time.time() - content["since"])
        return {**{key: content[key] for key in ("owner", "method", "pid", "since")}, "age_s": age}
    except (ValueError, KeyError, TypeError):
        return None


def _write(lock: int, text: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, text.encode(), 0)
