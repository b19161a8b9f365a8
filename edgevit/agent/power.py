"""Choose the power meter, and collect its readings.

A meter of power is a file in `meters/` that also has `why_not(root)`: None where it can read power, or what is missing.
A meter may take time to start, as a program does. So it is entered before the warm-up, or else the GPU would idle and
its clocks fall before the window; and it is called when the window begins.
"""

from __future__ import annotations

from importlib import import_module
from time import perf_counter_ns
from typing import Any, Dict, Optional, Protocol, Sequence, TypedDict

from .meters import AnyMeter
from .runners import RunnerError

METERS = ("ina3221", "tegrastats", "jtop")  # the best first: the other two read the same sensors, more coarsely

# If, at the end of the window, the last reading is older than this and than twice the longest gap between readings, no
# power is recorded: the meter has stopped, and the readings do not cover the window.
_SILENT_NS = 1_000_000_000

Rails = Sequence[Sequence[str]]  # I2C address and label of each


class PowerFigures(TypedDict):
    power: Optional[Dict[str, object]]  # fields of `records.Power`; None: no power could be read


class PowerMeter(AnyMeter, Protocol):
    def begin(self) -> None:
        """Take a reading and start the window at this moment, without waiting; entering the meter started one, too."""

    def figures(self) -> PowerFigures: ...


def power_meter(root: str, requested: str | None, total: Rails) -> PowerMeter | None:
    """Return the meter asked for, or the best that can read power here; None if none can.

    `total` are the rails that make up the module.

    Raises: RunnerError: the one asked for cannot read, or does not exist.
    """
    if requested is not None:
        if requested not in METERS:
            raise RunnerError(f"no power meter {requested!r}; known: {', '.join(METERS)}")
        reason = _module(requested).why_not(root)
        if reason:
            raise RunnerError(f"{requested} cannot read the power here: {reason}")
    for name in (requested,) if requested else METERS:
        if requested or _module(name).why_not(root) is None:
            meter: PowerMeter = _module(name).Meter(root, total)
            return meter
    return None


def power_meters(root: str) -> dict[str, str | None]:
    """Say of each meter why it cannot read the power here; None: it can."""
    return {name: _module(name).why_not(root) for name in METERS}


def _module(name: str) -> Any:
    return import_module(f".meters.{name}", __package__)


class Readings:
    """What one meter has read, in the form of `records.Power`."""

    def __init__(self, meter: str, total: Rails) -> None:
        self.meter = meter
        self.total_rails = total
        self.names: list[str] = []
        self.rows: list[Sequence[float]] = []
        self.times_ns: list[int] = []
        self.started_ns = 0
        self.ended_ns = 0

    def add(self, time_ns: int, milliwatts: dict[str, float]) -> None:
        """Keep one reading of all rails, "label@address", or "label" where the meter does not give the address.

        A reading that lacks a rail that others have is left out, even the first: its total would be too low.
        """
        if set(self.names) < set(milliwatts) and len(self.rows) < 2:
            del self.rows[:], self.times_ns[:]
            self.names = list(milliwatts)
        if all(name in milliwatts for name in self.names):
            self.times_ns.append(time_ns)
            self.rows.append([milliwatts[name] for name in self.names])

    def begin(self) -> None:
        """Start the window; of the earlier readings only the newest stays."""
        del self.rows[:-1], self.times_ns[:-1]
        self.started_ns = perf_counter_ns()

    def total(self) -> list[str]:
        """Return the names of the rails that make up the module; none of them, if one is missing."""
        names = [
            next((name for name in (f"{label}@{address}", label) if name in self.names), None)
            for address, label in self.total_rails
        ]
        return [name for name in names if name] if all(names) else []

    def figures(self, interval_ms: float | None) -> PowerFigures:
        gaps_ns = [b - a for a, b in zip(self.times_ns, self.times_ns[1:])]
        if not self.rows or self.ended_ns - self.times_ns[-1] > max(_SILENT_NS, 2 * max(gaps_ns, default=0)):
            return {"power": None}
        return {
            "power": {
                "meter": self.meter,
                "rails": {name: list(column) for name, column in zip(self.names, zip(*self.rows))},
                "times_ns": self.times_ns,
                "total": self.total(),
                "interval_ms": interval_ms,
                "window_started_ns": self.started_ns,
                "window_ended_ns": self.ended_ns,
                "ticks_ns": [],
            }
        }
