"""One job at a time on a board, whoever asks: a lock file that says who holds it and since when.

The kernel's lock on the file decides, and ends with the process that holds it; what the file says is for people. So
what a holder left that died is known for what it is: it is there, and nobody holds the lock.

Jobs hold it while they work, and a host while it copies (`take`). Looking at a board waits for others, too, and holds
nothing (`wait_for_others`). What only reads a file or two, such as the list of jobs, does neither.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import Callable, Iterator

from .files import cache_folder
from .messages import Holder, ProgressMessage, Send
from .runners import RunnerError

_FOLDERS = ("/run/lock", "/tmp")
_POLL_S = 0.2
COPY_S = 120.0  # time that a copy has the board to itself, so that a broken connection does not block it for hours
_SAY_EVERY_S = 10.0  # while nothing changes


@contextmanager
def acquire_lock(
    path: str | None, owner: str, method: str, report: Callable[[ProgressMessage], None]
) -> Iterator[None]:
    """Acquire the lock at `path`, or that of the board, for the duration of the block.

    Who holds the board meanwhile is reported as `{"stage": "wait", "holder": {...}}`, and a holder that died as
    `{"stage": "wait", "stale": {...}}`; both have an age, because the clocks of boards are often wrong.
    """
    lock = _open_any(_paths(path))
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


_acquired = ExitStack()  # the lock that `take` acquired


def take(send: Send, root: str, owner: str, method: str) -> dict[str, object]:
    """Wait for the board, and hold it for the host until `release`, this agent's end, or for `COPY_S`."""
    path = lock_path(root)
    if path:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    held = ExitStack()
    held.enter_context(acquire_lock(path, owner, method, lambda waiting: send({"progress": waiting})))
    timer = threading.Timer(COPY_S, held.close)
    timer.daemon = True
    timer.start()
    _acquired.callback(held.close)
    _acquired.callback(timer.cancel)
    return {}


def release(send: Send, root: str) -> dict[str, object]:
    _acquired.close()
    return {}


def wait_for_others(root: str, owner: str, report: Callable[[ProgressMessage], None]) -> None:
    """Wait while anybody but `owner` holds the board; nothing is made, written or held.

    One's own job is not waited for, because it is by looking that a host begins to collect its result.
    """
    for path in _paths(lock_path(root)):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            _wait(lock, report, owner)
        finally:
            os.close(lock)
        return


def lock_path(root: str) -> str | None:
    """A captured tree is a board of its own, and nothing is written into it."""
    return None if root == "/" else os.path.join(cache_folder(), "lock")


def _paths(path: str | None) -> list[str]:
    return [path] if path else [os.path.join(folder, "edgevit.lock") for folder in _FOLDERS]


def _wait(lock: int, report: Callable[[ProgressMessage], None], allowed: str | None = None) -> None:
    """Acquire the lock, or verify that the owner `allowed` has it."""
    last_identity, reported_s = None, 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _read(lock)
        if allowed and holder and holder["owner"] == allowed:
            return
        identity = holder and (holder["owner"], holder["method"], holder["pid"])
        if identity != last_identity or time.monotonic() - reported_s > _SAY_EVERY_S:
            last_identity, reported_s = identity, time.monotonic()
            report({"stage": "wait", "done": 0.0, "holder": holder})
        time.sleep(_POLL_S)


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


def _read(lock: int) -> Holder | None:
    """Return what the holder wrote and its age in seconds; None while it says nothing that can be read."""
    try:
        content = json.loads(os.pread(lock, 4096, 0))
        age = max(0.0, time.time() - content["since"])
        return {
            "owner": content["owner"],
            "method": content["method"],
            "pid": content["pid"],
            "since": content["since"],
            "age_s": age,
        }
    except (ValueError, KeyError, TypeError):
        return None


def _write(lock: int, text: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, text.encode(), 0)
