"""Temperatures, and whether the board held itself back during the window: by heat, or by what its supply delivers."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from ..jetson import temperatures_c
from ..kernel import read_integer, read_text

# Counters of the driver tegra23x-oc-event (hwmon "soctherm_oc"). At each event the hardware halves clocks for a moment.
_EVENTS = {
    "oc1_event_cnt": "under-voltage",
    "oc2_event_cnt": "average over-current",
    "oc3_event_cnt": "instantaneous over-current",
}
# An Orin Nano Super in MAXN_SUPER was seen to count 1 to 30 instantaneous events a second even when idle, each a
# millisecond long (one user's report, UNCONFIRMED elsewhere). Below this rate they take less than 1 % of the time.
_HARMLESS_PER_S = {"oc3_event_cnt": 10.0}


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.readings: list[dict[str, float]] = []
        self.states = dict.fromkeys(_throttles(root), 0)  # the highest seen, by folder
        self.counters: list[dict[str, int]] = []
        self.started = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Meter:
        self.counters.append(_counters(self.root))
        self.started = perf_counter()
        self.read()
        return self

    def read(self) -> None:
        self.readings.append(temperatures_c(self.root))
        for folder, highest in self.states.items():
            self.states[folder] = max(highest, read_integer(folder, "cur_state") or 0)

    def __exit__(self, *_: object) -> None:
        self.read()
        self.seconds = perf_counter() - self.started
        self.counters.append(_counters(self.root))

    def hottest_c(self) -> float | None:
        """The highest temperature of the last reading."""
        return max(self.readings[-1].values(), default=None) if self.readings else None

    def figures(self) -> dict[str, object]:
        before, *during, after = self.readings
        return {
            "temperatures_before_c": before or None,
            "temperatures_during_c": tuple(during) if before else None,
            "temperatures_after_c": after or None,
            "throttled": self._throttled() if self.states or self.counters[0] else None,
        }

    def _throttled(self) -> tuple[str, ...]:
        heat = [
            f"{read_text(folder, 'type')} at step {state}" for folder, state in sorted(self.states.items()) if state
        ]
        before, after = self.counters
        counts = {file: count - before.get(file, count) for file, count in after.items()}
        supply = [
            f"{_EVENTS[file]} {count} times"
            for file, count in sorted(counts.items())
            if count > _HARMLESS_PER_S.get(file, 0) * self.seconds
        ]
        return (*heat, *supply)


def _throttles(root: str) -> list[str]:
    """Return the cooling devices that slow something down; a fan or a warning of a hot surface does not."""
    folders = [str(folder) for folder in Path(root, "sys/class/thermal").glob("cooling_device*")]
    kinds = ("throttle", "cpu", "gpu", "devfreq")  # Linux 5.10 calls the GPU's thermal-devfreq-0
    return sorted(folder for folder in folders if any(kind in (read_text(folder, "type") or "") for kind in kinds))


def _counters(root: str) -> dict[str, int]:
    counts = {}
    for folder in Path(root, "sys/class/hwmon").glob("hwmon*"):
        if read_text(str(folder), "name") == "soctherm_oc":
            for file in _EVENTS:
                count = read_integer(str(folder), file)
                if count is not None:
                    counts[file] = count
    return counts
