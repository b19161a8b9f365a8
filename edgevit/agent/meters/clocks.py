"""The clock of each core, in kHz, where the kernel offers cpufreq; virtual machines and containers often do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..kernel import read_text


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.readings: list[dict[str, int]] = []

    def __enter__(self) -> Meter:
        self.read()
        return self

    def read(self) -> None:
        clocks = {}
        for folder in sorted(Path(self.root, "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
            khz = read_text(str(folder), "scaling_cur_freq")
            if khz and khz.isdigit():
                clocks[folder.parent.name] = int(khz)
        self.readings.append(clocks)

    def __exit__(self, *_: object) -> None:
        self.read()

    def figures(self) -> dict[str, Any]:
        before, *during, after = self.readings
        return {
            "clocks_before_khz": before or None,
            "clocks_during_khz": tuple(during) if before else None,
            "clocks_after_khz": after or None,
        }
