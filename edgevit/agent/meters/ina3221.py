"""Power of each rail, from the INA3221 sensors on the module, through sysfs: no root, no program in between.

The sensor does not answer with the power of the moment. After each conversion it moves its register by 1/`samples` of
the way to the new value (TI SBOS576, "Averaging Function"), and it has made `samples` conversions of every channel
after `update_interval` (the kernel's hwmon/ina3221). So a reading is a running mean with that interval for its time
constant, 430 ms as L4T sets it: `records.Power` reckons back. Reading it more often than a few times a second tells
nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from ..kernel import read_integer, read_text
from ..power import Rails, Readings

CHANNELS = (1, 2, 3)  # 4 to 7 are voltages across the shunts, and a sum


@dataclass(frozen=True)
class SensorChannel:
    address: str  # on the I2C bus, e.g. "40"
    label: str  # e.g. "VDD_IN"
    folder: str
    channel: int

    def milliwatts(self) -> float | None:
        millivolts = read_integer(self.folder, f"in{self.channel}_input")
        milliamperes = read_integer(self.folder, f"curr{self.channel}_input")
        return None if millivolts is None or milliamperes is None else millivolts * milliamperes / 1000


def sensor_channels(root: str) -> list[SensorChannel]:
    """Return the rails that have a name and a sensor that is switched on. The folders' numbers change between boots."""
    found = []
    for folder in sorted(Path(root, "sys/bus/i2c/drivers/ina3221").glob("*-004[01]/hwmon/hwmon*")):
        address = folder.parts[-3][-2:]
        for channel in CHANNELS:
            label = read_text(str(folder), f"in{channel}_label")
            if label and label != "NC" and read_integer(str(folder), f"in{channel}_enable") != 0:
                found.append(SensorChannel(address, label, str(folder), channel))
    return found


def interval_ms(root: str) -> float | None:
    """Return the time constant of the slowest of the sensors."""
    told = {read_integer(rail.folder, "update_interval") or 0 for rail in sensor_channels(root)}
    return max((ms for ms in told if ms > 0), default=None)


def why_not(root: str) -> str | None:
    found = sensor_channels(root)
    if not found:
        return "no INA3221 under /sys/bus/i2c/drivers/ina3221"
    silent = all(rail.milliwatts() is None for rail in found)
    return f"no reading of {', '.join(rail.label for rail in found)}" if silent else None


class Meter:
    def __init__(self, root: str, total: Rails = ()) -> None:
        self.rails = sensor_channels(root)
        self.interval_ms = interval_ms(root)
        self.readings = Readings("ina3221", total)

    def __enter__(self) -> Meter:
        self.begin()
        return self

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        row = {f"{rail.label}@{rail.address}": rail.milliwatts() for rail in self.rails}
        told = {name: milliwatts for name, milliwatts in row.items() if milliwatts is not None}
        if told:
            self.readings.add(perf_counter_ns(), told)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        self.read()  # at once: what the sensor still owes is reckoned from it

    def figures(self) -> dict[str, Any]:
        return self.readings.figures(self.interval_ms)
