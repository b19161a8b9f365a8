"""What else the machine was doing: the load average, and the processor time of all programs beside our own."""

from __future__ import annotations

import os
import time

from ..environment import usable_cpus
from ..kernel import read_text


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.load_average: float | None = None
        self.busy: list[int | None] = []
        self.own_ns: list[int] = []

    def __enter__(self) -> Meter:
        # The load average lags by a minute, and our own runs raise it: the ticks tell what it cannot.
        words = (read_text(self.root, "proc/loadavg") or "").split()
        self.load_average = float(words[0]) if words else None
        self._read()
        return self

    def read(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._read()

    def figures(self) -> dict[str, object]:
        return {
            "load_average_before": self.load_average,
            "cpu_busy_ns": _elapsed_ns(self.busy),
            "cpu_own_ns": self.own_ns[1] - self.own_ns[0],
        }

    def _read(self) -> None:
        self.busy.append(_busy_ticks(self.root))
        self.own_ns.append(time.process_time_ns())  # ticks of 10 ms would be coarse for a short window


def _busy_ticks(root: str) -> int | None:
    """Sum over our cores: user, nice, system, irq, softirq and steal; idle and iowait are not busy."""
    cpus = {f"cpu{number}" for number in usable_cpus()}
    rows = [line.split() for line in (read_text(root, "proc/stat") or "").splitlines()]
    ticks = [sum(map(int, row[1:4] + row[6:9])) for row in rows if row and row[0] in cpus]
    return sum(ticks) if ticks else None


def _elapsed_ns(ticks: list[int | None]) -> int | None:
    before, after = ticks
    if before is None or after is None:
        return None
    return (after - before) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
