"""Locks: one process at a time in a folder, or at a piece of work whose result others then use."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgevit.errors import EdgeVitError

logger = logging.getLogger(__name__)

# Errors of network file systems without locks, on which work continues without a lock.
_UNSUPPORTED = {errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def alone_in(folder: Path, busy: EdgeVitError) -> Iterator[None]:
    """Lock an existing folder until the block or the process ends.

    The lock is on the folder itself, so that no file must be cleaned up, and no file in it can be a link elsewhere.

    Raises:
        busy: another process holds the lock.
        OSError: the folder is missing, or not readable.
    """
    while True:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed or renamed the folder meanwhile: then the lock has no effect.
            if os.fstat(handle).st_ino == os.stat(folder).st_ino:
                break
        except BlockingIOError:
            os.close(handle)
            raise busy from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                logger.warning("%s is on a file system without locks; let no other edgevit work in it", folder)
                break
            os.close(handle)
            raise
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold an existing folder until the block or the process ends; several may, and `is_held` is true meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system may have no locks
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool | None:
    """Whether another process holds the lock of a folder; None: the file system has no locks, or it cannot be read."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


@contextmanager
def in_turn(file: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wait for the lock of a file, which is created if it is missing, and hold it until the block ends.

    `waiting` is called if another process holds it.

    Nothing is written to the file and no link is followed, because other users may be able to write to the folder.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    # Without O_NONBLOCK, opening a named pipe of this name would block.
    handle = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        yield
    finally:
        os.close(handle)
