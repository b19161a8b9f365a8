"""Memory: the peak of this process, and how far the machine's available memory fell.

Available memory is the figure that counts where CPU and GPU share one memory, as on every Jetson: a GPU allocation is
not part of any process's resident set. What the GPU's allocator has given to this process, root alone may read.
"""

from __future__ import annotations

import os

from ..kernel import integer, read_bytes, read_text

_NVMAP = "sys/kernel/debug/nvmap/iovmm/clients"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.available: list[int | None] = []
        self.peak: int | None = None
        self.nvmap: list[int] = []

    def __enter__(self) -> Meter:
        self.read()
        return self

    def read(self) -> None:
        self.available.append(read_bytes(self.root, "proc/meminfo", "MemAvailable"))
        nvmap = parse_nvmap(read_text(self.root, _NVMAP) or "", os.getpid())
        if nvmap is not None:
            self.nvmap.append(nvmap)

    def __exit__(self, *_: object) -> None:
        self.read()
        # Not getrusage's ru_maxrss: it survives exec, so that it would report the peak of the process that started us.
        self.peak = read_bytes(self.root, "proc/self/status", "VmHWM")

    def figures(self) -> dict[str, object]:
        return {
            "memory_peak_rss_bytes": self.peak,
            "memory_available_before_bytes": self.available[0],
            "memory_available_min_bytes": min((a for a in self.available if a is not None), default=None),
            "memory_available_after_bytes": self.available[-1],
            "memory_nvmap_bytes": max(self.nvmap, default=None),
        }


def parse_nvmap(text: str, pid: int) -> int | None:
    """Return what one process holds, from a table whose columns end in PID and SIZE, or PID, PSS and SIZE.

    A process may have several lines, and its name may hold spaces: columns are counted from the right.
    """
    header, *rows = [line.split() for line in text.splitlines()] or [[]]
    if "PID" not in header:
        return None
    column = header.index("PID") - len(header)
    sizes = [_size(row[-1]) for row in rows if len(row) >= len(header) and row[column] == str(pid)]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def _size(text: str) -> int | None:
    number = integer(text[:-1] if text[-1] in _UNITS else text)
    return None if number is None else number * _UNITS.get(text[-1], 1)
