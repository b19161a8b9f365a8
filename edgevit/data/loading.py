"""Choose how many processes decode images by default.

The number does not change results: the augmentation of an image depends only on its seed, and batches keep their order.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from contextlib import suppress
from pathlib import Path

MOST = 8
_SHARED = Path("/dev/shm")  # batches come from these processes through it; often 64 MB in a container
IMAGE_BYTES = 4 * 3 * 384 * 384  # a large image
_WAITING = 2  # batches that torch prefetches per process


def workers_for(requested: int | None, device: str, batch_size: int, *, sharing: int = 1) -> int:
    """Return the requested number, or by default 0 for a CPU, which needs all cores to compute, and a few for a GPU.

    Args:
        device: the device type, such as "cuda".
        sharing: processes that train together on this machine.
    """
    if requested is not None:
        return requested
    # If processes are spawned and not forked, a script without a main guard would run again in each.
    if device != "cuda" or not _forks():
        return 0
    room = shared_bytes() // sharing // (_WAITING * batch_size * IMAGE_BYTES)
    return min(MOST, _cores() // sharing, room)


def _forks() -> bool:
    return (multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork"


def _cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_bytes(folder: Path = _SHARED) -> int:
    """Read how much shared memory is free; 0 if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0
