"""Memory: the peak of this process, and how far the machine's available memory fell.

Available memory is the figure that counts where CPU and GPU share one memory, as on every Jetson: a GPU allocation is
not part of any process's resident set.
"""

from __future__ import annotations

from typing import Any

from ..kernel import read_bytes


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.available: list[int | None] = []
        self.peak: int | None = None

    def __enter__(self) -> Meter:
        self.read()
        return self

    def read(self) -> None:
        self.available.append(read_bytes(self.root, "proc/meminfo", "MemAvailable"))

    def __exit__(self, *_: object) -> None:
        self.read()
        # Not getrusage's ru_maxrss: it survives exec, so that it would report the peak of the process that started us.
        self.peak = read_bytes(self.root, "proc/self/status", "VmHWM")

    def figures(self) -> dict[str, Any]:
        return {
            "memory_peak_rss_bytes": self.peak,
            "memory_available_before_bytes": self.available[0],
            "memory_available_min_bytes": min((a for a in self.available if a is not None), default=None),
            "memory_available_after_bytes": self.available[-1],
        }
