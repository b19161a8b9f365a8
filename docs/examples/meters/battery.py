"""Power from the kernel's power supplies, where a machine runs on a battery."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Any

from edgevit.agent.kernel import read_integer
from edgevit.agent.power import Rails, Readings


def batteries(root: str) -> list[Path]:
    return sorted(Path(root, "sys/class/power_supply").glob("BAT*"))


def why_not(root: str) -> str | None:
    """Return why power cannot be read here; None: it can."""
    return None if batteries(root) else "no battery under /sys/class/power_supply"


class Meter:
    """Read the power of every battery when `read` is called: between two inferences, a few times a second."""

    def __init__(self, root: str, total: Rails = ()) -> None:
        self.folders = batteries(root)
        self.readings = Readings("battery", total)

    def __enter__(self) -> Meter:
        self.begin()
        return self

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        microwatts = {folder.name: read_integer(str(folder), "power_now") for folder in self.folders}
        milliwatts = {name: value / 1000 for name, value in microwatts.items() if value is not None}
        if milliwatts:
            self.readings.add(perf_counter_ns(), milliwatts)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        self.read()

    def figures(self) -> dict[str, Any]:
        return self.readings.figures(interval_ms=None)
