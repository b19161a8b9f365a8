"""Power of each rail, from the INA3221 sensors on the module, through sysfs: no root, no program in between.

A register of the sensor is not the power of the moment. Each conversion moves it by 1/`samples` of the way to the new
value (TI SBOS576, "Averaging Function"): it is a running mean, and its time constant is that of `samples` conversions
of all channels, 430 ms as L4T sets it. `records.Power` corrects for it. More than a few readings a second add nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Sequence

from ..kernel import read_integer, read_text
from ..power import PowerFigures, Rails, Readings

_CHANNELS = (1, 2, 3)  # 4 to 7 are voltages across the shunts, and a sum
_CONVERSION_US = (140, 204, 332, 588, 1100, 2116, 4156, 8244)  # the sensor's choice; voltage and current take one each
# If reading all rails takes longer, another meter is used. Through I2C it takes a few ms; in some L4T 35 the driver
# waits for a new average at each file, up to 430 ms. Several attempts, as another program may delay one.
BLOCKED_MS, ATTEMPTS = 50.0, 3
ROOT_ALONE = "root alone may read"
_L4T_MS = 430.0  # the time constant that L4T's nvpower.sh requests, with 512 samples


@dataclass(frozen=True)
class SensorChannel:
    address: str  # address on the I2C bus, e.g. "40"
    label: str  # name of the rail, e.g. "VDD_IN"
    folder: str
    channel: int

    def milliwatts(self) -> float | None:
        millivolts = read_integer(self.folder, f"in{self.channel}_input")
        milliamperes = read_integer(self.folder, f"curr{self.channel}_input")
        return None if millivolts is None or milliamperes is None else millivolts * milliamperes / 1000

    def is_denied(self) -> bool:
        files = [Path(self.folder, f"{quantity}{self.channel}_input") for quantity in ("in", "curr")]
        return any(file.exists() and not os.access(file, os.R_OK) for file in files)


def sensor_channels(root: str) -> list[SensorChannel]:
    """Return the rails that have a name and a sensor that is switched on. The folders' numbers change between boots."""
    channels = []
    for folder in sorted(Path(root, "sys/bus/i2c/drivers/ina3221").glob("*-004[01]/hwmon/hwmon*")):
        address = folder.parts[-3][-2:]
        for channel in _CHANNELS:
            label = read_text(str(folder), f"in{channel}_label")
            if label and label != "NC" and read_integer(str(folder), f"in{channel}_enable") != 0:
                channels.append(SensorChannel(address, label, str(folder), channel))
    return channels


def interval_ms(root: str, total: Rails = ()) -> float | None:
    """Return the time constant of the slowest sensor that carries a rail of `total`, or of all; None: unknown."""
    channels = sensor_channels(root)
    keys = {tuple(rail) for rail in total}
    folders = {channel.folder for channel in channels if (channel.address, channel.label) in keys}
    intervals = [_interval_ms(folder) for folder in folders or {channel.folder for channel in channels}]
    return max((ms for ms in intervals if ms is not None), default=None)


def _interval_ms(folder: str) -> float | None:
    answer = read_integer(folder, "update_interval")
    enabled = [read_integer(folder, f"in{channel}_enable") != 0 for channel in _CHANNELS]
    return None if answer is None else averaging_ms(answer, read_integer(folder, "samples"), sum(enabled))


def averaging_ms(answer_ms: int, samples: int | None, channels: int) -> float | None:
    """Return the time constant in ms, from the driver's `update_interval`, its `samples` and its enabled channels.

    Since Linux 5.14, and in L4T 36, `update_interval` is one conversion of all channels, rounded to a whole ms: 1 for
    3 x 280 us. Before, as in L4T 35, it is the whole average: 430. An answer that no conversion gives is an average; at
    512 samples the two ranges are apart (at most 49 ms, at least 143 ms). Where several conversion times round to one
    answer, L4T's request decides, as the driver chooses the conversion time that comes closest to it.
    """
    sets_us = [2 * channels * us for us in _CONVERSION_US if (2 * channels * us + 500) // 1000 == answer_ms]
    if samples is None or samples < 1 or channels < 1 or not sets_us:
        return float(answer_ms) if answer_ms > 0 else None
    return min((us * samples / 1000 for us in sets_us), key=lambda ms: abs(ms - _L4T_MS))


def why_not(root: str) -> str | None:
    """Say why power cannot be read here, or not without harm: the GPU idles for as long as a reading takes."""
    channels = sensor_channels(root)
    if not channels:
        return "no INA3221 under /sys/bus/i2c/drivers/ina3221"
    labels = ", ".join(channel.label for channel in channels)
    if all(channel.is_denied() for channel in channels):
        return f"{ROOT_ALONE} {labels}"
    for _ in range(ATTEMPTS):
        powers, ms = _read(channels)
        if ms <= BLOCKED_MS:
            return None if any(power is not None for power in powers) else f"no reading of {labels}"
    return (
        f"a reading takes {ms:.0f} ms or more, as this kernel waits for a new average, and the GPU would idle meanwhile"
    )


def _read(channels: Sequence[SensorChannel]) -> tuple[list[float | None], float]:
    """Read one channel after another, unless that takes too long; return milliwatts, and the time in ms."""
    powers: list[float | None] = []
    began, ms = perf_counter_ns(), 0.0
    for channel in channels:
        powers.append(channel.milliwatts())
        ms = (perf_counter_ns() - began) / 1e6
        if ms > BLOCKED_MS:
            break
    return powers, ms


class Meter:
    def __init__(self, root: str, total: Rails = ()) -> None:
        self.rails = sensor_channels(root)
        self.interval_ms = interval_ms(root, total)
        self.readings = Readings("ina3221", total)

    def __enter__(self) -> Meter:
        self.begin()
        return self

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        began = perf_counter_ns()
        row = {f"{rail.label}@{rail.address}": rail.milliwatts() for rail in self.rails}
        rails = {name: milliwatts for name, milliwatts in row.items() if milliwatts is not None}
        if rails:
            self.readings.add((began + perf_counter_ns()) // 2, rails)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        self.read()  # at once: what the sensor still owes is reckoned from it

    def figures(self) -> PowerFigures:
        return self.readings.figures(self.interval_ms)
