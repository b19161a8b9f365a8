"""How many processes decode images, where nobody says: a GPU would wait for them.

The number changes no result: an image is decoded alike everywhere, its augmentation depends on its own seed alone, and
batches come in the order that is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from contextlib import suppress
from pathlib import Path

MOST = 8
SHARED = Path("/dev/shm")  # through which batches come back from these processes; 64 MB in many a container
IMAGE_BYTES = 4 * 3 * 384 * 384  # of a large one
WAITING = 2  # batches that torch has each process hold ready


def workers_for(asked: int | None, device: str, batch_size: int, *, sharing: int = 1) -> int:
    """The number that was asked for; else none on a CPU, which computes with every core itself, and a few on a GPU.

    Args:
        device: its kind, such as "cuda".
        sharing: processes that train side by side on this machine.
    """
    if asked is not None:
        return asked
    # Where processes are not forked, a script that does not guard its main part would run once more in each.
    if device != "cuda" or not _forks():
        return 0
    room = shared_bytes() // sharing // (WAITING * batch_size * IMAGE_BYTES)
    return min(MOST, _cores() // sharing, room)


def _forks() -> bool:
    return (multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork"


def _cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_bytes(folder: Path = SHARED) -> int:
    """Memory that processes may share, and that is free; 0 where nothing says."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0
