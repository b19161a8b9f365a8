"""Clocks in kHz: of each core, where the kernel offers cpufreq, and on a Jetson of the GPU and its memory (EMC).

Virtual machines and containers often offer none; a core that is switched off has none; the EMC's is for root alone.
"""

from __future__ import annotations

from ..jetson import cpufreq, gpu_devfreq
from ..kernel import read_integer

_EMC = "sys/kernel/debug/bpmp/debug/clk/emc/rate"


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.readings: list[dict[str, int]] = []

    def __enter__(self) -> Meter:
        self.read()
        return self

    def read(self) -> None:
        gpu = gpu_devfreq(self.root)  # first, as it may slow down while nothing runs on it
        hz = {"gpu": read_integer(gpu, "cur_freq") if gpu else None, "emc": read_integer(self.root, _EMC)}
        khz = {core: read_integer(folder, "scaling_cur_freq") for core, folder in cpufreq(self.root).items()}
        khz.update((name, speed // 1000) for name, speed in hz.items() if speed is not None)
        self.readings.append({name: speed for name, speed in khz.items() if speed is not None})

    def __exit__(self, *_: object) -> None:
        self.read()

    def figures(self) -> dict[str, object]:
        before, *during, after = self.readings
        return {
            "clocks_before_khz": before or None,
            "clocks_during_khz": tuple(during) if before else None,
            "clocks_after_khz": after or None,
        }
