"""The record of a measurement. The board writes it, the host reads it."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Callable, Dict, Sequence, Tuple

from . import doubts

SCHEMA = 1

# Fields of a run that JSON turns from tuples into lists.
_SERIES = ("clocks_during_khz", "gpu_load_permille", "temperatures_during_c", "throttled", "beside")
_TIMES = ("latencies_ns", "gpu_ns")  # one time for each inference

PARTS = ("decode", "preprocess", "copy in", "inference", "copy out")  # parts of an inference end to end, in order
CLOSED_LOOP = "one after another"  # the use of a run that has no other

# Share of the ticks' time between their first and last readings, from which the power of ticks is taken. Below it, the
# resolution of the readings is too coarse for it.
_TICKS_COVERED = 0.25


class RecordError(ValueError):
    """The text is not a run that this edgevit can read."""


@dataclass(frozen=True)
class Power:
    """What the power sensors said, raw: of all rails, from before the timed window until after it.

    A sensor answers with a running mean r that follows the power P by r' = (P - r) / interval, where the interval is
    430 ms as L4T sets it. So the energy of a window is the integral of the readings, and what the sensor still owes:

        E = integral of r over [started, ended] + interval (r(ended) - r(started))
    """

    meter: str  # name of the file in agent/meters/
    rails: dict[str, tuple[float, ...]]  # milliwatts at each time, by "label@address", e.g. "VDD_IN@40"
    times_ns: tuple[int, ...]  # time of each reading, by the window's clock
    total: tuple[str, ...]  # rails that make up the module; empty: not known, so the energy is not either
    interval_ms: float | None  # time constant of the sensor's running mean; None: the sensor does not state it
    window_started_ns: int
    window_ended_ns: int
    # Start and end, alternating, of each time in the window in which the meters alone worked.
    ticks_ns: tuple[int, ...] = ()

    def total_mw(self) -> tuple[float, ...] | None:
        """The module's power at each reading."""
        if not self.total or not self.times_ns:
            return None
        return tuple(sum(values) for values in zip(*(self.rails[name] for name in self.total)))

    def mean_mw(self) -> float | None:
        """Mean power of the module over the window; None where no reading covers it."""
        milliwatts = self.total_mw()
        start, end = self.window_started_ns, self.window_ended_ns
        if milliwatts is None or end <= start or len(self.times_ns) < 2:
            return None
        if self.times_ns[-1] <= start or self.times_ns[0] >= end:
            return None
        return self._drawn(milliwatts, start, end) / (end - start)

    def tick_mw(self) -> float | None:
        """Mean power of the module while the meters alone worked; None where the readings do not tell."""
        milliwatts, pairs = self.total_mw(), list(zip(self.ticks_ns[::2], self.ticks_ns[1::2]))
        if milliwatts is None or not pairs:
            return None
        inside = [[time for time in self.times_ns if start <= time <= end] for start, end in pairs]
        spans = [(times[0], times[-1]) for times in inside if len(times) > 1]
        covered = sum(end - start for start, end in spans)
        if covered <= _TICKS_COVERED * sum(end - start for start, end in pairs):
            return None
        return sum(self._drawn(milliwatts, start, end) for start, end in spans) / covered

    def _drawn(self, milliwatts: Sequence[float], start: int, end: int) -> float:
        """Energy between two times, in mW x ns: the integral of the readings, and what the sensor still owes."""
        owed = _interpolated(self.times_ns, milliwatts, end) - _interpolated(self.times_ns, milliwatts, start)
        return _integral(self.times_ns, milliwatts, start, end) + owed * (self.interval_ms or 0) * 1e6

    def window_s(self) -> float:
        """Length of the window: a run's wall time and that of its ticks."""
        return (self.window_ended_ns - self.window_started_ns) / 1e9

    def energy_mj(self) -> float | None:
        """Energy of the module over the window."""
        mean = self.mean_mw()
        return None if mean is None else mean * self.window_s()

    @classmethod
    def from_dict(cls, data: Any) -> Power:
        """Raises: RecordError."""
        if not isinstance(data, dict) or {field.name for field in fields(cls)} != set(data):
            raise RecordError(f"power is not {', '.join(field.name for field in fields(cls))}")
        _check_types(cls, data)
        times, rails, total, ticks = data["times_ns"], data["rails"], data["total"], data["ticks_ns"]
        if len(ticks) % 2 or any(a > b for row in (times, ticks) for a, b in zip(row, row[1:])):
            raise RecordError("power has times that do not ascend, or a tick without an end")
        if any(len(row) != len(times) for row in rails.values()) or not set(total) <= set(rails):
            raise RecordError("power has rails without a reading at each time, or a total of rails that are not there")
        rows = {name: tuple(float(milliwatts) for milliwatts in row) for name, row in rails.items()}
        series = {"rails": rows, "times_ns": tuple(times), "total": tuple(total), "ticks_ns": tuple(ticks)}
        return cls(**{**data, **series})


def _interpolated(times: Sequence[int], values: Sequence[float], time: int) -> float:
    """Linear between readings, and constant before the first and after the last."""
    i = bisect_left(times, time)
    if i == 0 or i == len(times):
        return values[min(i, len(times) - 1)]
    earlier, later = times[i - 1], times[i]
    return values[i - 1] + (values[i] - values[i - 1]) * (time - earlier) / (later - earlier)


def _integral(times: Sequence[int], values: Sequence[float], start: int, end: int) -> float:
    """By trapezoids, exact for what is linear between readings."""
    inside = [(time, value) for time, value in zip(times, values) if start < time < end]
    points = [(start, _interpolated(times, values, start)), *inside, (end, _interpolated(times, values, end))]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(points, points[1:]))


@dataclass(frozen=True)
class Run:
    """One model in one process at one batch size, kept raw: percentiles and means are computed, never stored.

    `None` means "not measured on this machine"; it is never written as 0.
    """

    label: str  # name of the model in tables, e.g. that of its folder
    model: str  # file name of the model, e.g. "model.fp16.onnx"
    model_sha256: str
    precision: str | None  # precision of the weights and of the arithmetic, e.g. "fp16"
    runner: str  # name of the file in agent/runners/
    provider: str | None  # what the runner ran on, in its own words, e.g. "CPUExecutionProvider"
    batch: int  # number of images per inference
    streams: int  # number of inferences under way at once
    # One per inference, after warm-up, in order. These and all other times of inferences are 64-bit arrays, as a file
    # may hold runs of a million inferences, and a tuple of ints takes five times the memory.
    latencies_ns: Sequence[int]
    # The same inferences by the GPU's own clock, from before the host launches the work, unless copies come before it,
    # until the work is complete: so with the launch, and without the time until the host sees that it is over.
    gpu_ns: Sequence[int] | None
    wall_ns: int  # duration of the timed window, less the time that the meters took
    load_ns: int  # time to load the model from a file in the page cache, without importing the runtime
    first_inference_ns: int
    warmup: int  # number of inferences between the first one and the window
    clock_step_ns: int  # smallest difference that the clock showed
    memory_peak_rss_bytes: int | None  # peak resident set of the whole process, with Python and the runtime
    memory_available_before_bytes: int | None  # available memory of the machine before the runtime was imported
    memory_available_min_bytes: int | None  # lowest available memory from then to the end of the window
    memory_available_after_bytes: int | None  # available memory of the machine after the model was unloaded
    memory_engine_bytes: int | None  # memory of weights and activations, by the runtime's own account
    memory_nvmap_bytes: int | None  # GPU memory of this process, by the kernel's account; needs root
    clocks_before_khz: dict[str, int] | None  # clocks right after warm-up, by name: "cpu0" ..., "gpu", "emc"
    clocks_during_khz: tuple[dict[str, int], ...] | None  # clocks in the window, read several times a second
    clocks_after_khz: dict[str, int] | None
    load_average_before: float | None  # load average of the machine over the last minute before
    cpu_busy_ns: int | None  # processor time of all programs in the window, summed over the cores this process may use
    cpu_own_ns: int | None  # processor time of this process in the window
    gpu_load_permille: tuple[int, ...] | None  # load of the GPU in the window, read several times a second
    temperatures_before_c: dict[str, float] | None  # temperatures right after warm-up, by thermal zone
    temperatures_during_c: tuple[dict[str, float], ...] | None
    temperatures_after_c: dict[str, float] | None
    throttled: tuple[str, ...] | None  # what the kernel throttled during the window; empty: nothing
    power_mode_before: str | None
    power_mode_after: str | None
    power: Power | None
    idle_power: Power | None  # power before the model was loaded, with nothing running
    # Id of the bench's session, whose runs share the board's state; None: the run was measured by itself.
    session: str | None
    round: int | None  # number of the session's round, from 1; each model is measured once in a round
    turn: int | None  # position of its process in the session, from 1
    environment: dict[str, str]  # settings and versions that must match for two runs to be compared
    created: str  # time of the run as ISO 8601, UTC
    edgevit: str | None = None  # version of edgevit on the host, which adds it, as the agent knows no version
    # Time between the beginnings of two inferences; None: one follows another, without a pause.
    period_ns: int | None = None
    # Number of periods in which no inference began, as the one before was not over; None: no periods.
    missed: int | None = None
    # A time per inference of each of PARTS, without "copy out" where nothing tells it apart.
    # None: an inference begins with input that is there; else a latency is end to end, and a bit more than its parts.
    parts_ns: dict[str, Sequence[int]] | None = None
    # Labels of the models with which it alternated in one process; its memory and its power were then not told apart.
    beside: tuple[str, ...] | None = None
    # Inferences of this model that followed one another each time; as many times as the others.
    visit: int | None = None

    def __post_init__(self) -> None:
        for name in _TIMES:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, array("q", getattr(self, name)))
        if self.parts_ns is not None:
            object.__setattr__(self, "parts_ns", {name: array("q", part) for name, part in self.parts_ns.items()})

    @cached_property
    def _percentiles_ns(self) -> Tuple[int, int, int, int]:
        """The p50, p90, p95 and p99 of the latencies: each is asked for often, and sorting takes longest."""
        ordered = sorted(self.latencies_ns)
        return tuple(_at_rank(ordered, percentile) for percentile in (50, 90, 95, 99))  # type: ignore[return-value]

    def visit_p50s_ns(self) -> list[int]:
        """The median of each visit, in order; none of a model that had its process for itself."""
        if self.visit is None:
            return []
        starts = range(0, len(self.latencies_ns), self.visit)
        return [_nearest_rank(self.latencies_ns[start : start + self.visit], 50) for start in starts]

    def p50_ns(self) -> int:
        return self._percentiles_ns[0]

    @property
    def latency_ms(self) -> float:
        """The p50 of one inference, of a whole batch."""
        return self.p50_ns() / 1e6

    def p90_ns(self) -> int:
        return self._percentiles_ns[1]

    def p95_ns(self) -> int:
        return self._percentiles_ns[2]

    def p99_ns(self) -> int:
        return self._percentiles_ns[3]

    def mean_ns(self) -> float:
        return sum(self.latencies_ns) / len(self.latencies_ns)

    @cached_property
    def _stddev_ns(self) -> float:
        # Exact up to the last division, as the standard library's is, which takes a hundred times as long.
        count, total, squares = len(self.latencies_ns), sum(self.latencies_ns), sum(ns * ns for ns in self.latencies_ns)
        return math.sqrt((count * squares - total * total) / (count * (count - 1)))

    def stddev_ns(self) -> float:
        """Sample standard deviation; 0 for a single sample."""
        return self._stddev_ns if len(self.latencies_ns) > 1 else 0.0

    def gpu_percentile_ns(self, percentile: float) -> int | None:
        """Nearest rank: the smallest time that `percentile` % of all are at or below; `percentile` in (0, 100]."""
        return None if self.gpu_ns is None else _nearest_rank(self.gpu_ns, percentile)

    def power_mw(self) -> float | None:
        """Mean power of the whole module over the inferences: over the window less its ticks.

        In a tick the meters are read and no inference runs, so that the module draws less. With E the energy of the
        window, W the wall time, T that of the ticks, the window being W + T, and P_t the power in ticks:

            power = (E - P_t T) / W,    energy of an image = power / images per second

        P_t comes from readings at both ends of each tick. Where the meter is too slow for that, and where P_t is not
        between 0 and twice E / (W + T), it is E / (W + T).
        """
        mean = self.power.mean_mw() if self.power else None
        if self.power is None or mean is None:
            return None
        tick_mw = self.power.tick_mw()
        if tick_mw is None or not 0 <= tick_mw <= 2 * mean:
            return mean
        return mean + (mean - tick_mw) * self.ticks_ns() / self.wall_ns

    def ticks_ns(self) -> int:
        """Time of the window in which the meters alone worked; 0 where inferences have pauses anyway."""
        if self.power is None or self.period_ns is not None:
            return 0
        return max(0, self.power.window_ended_ns - self.power.window_started_ns - self.wall_ns)

    def idle_power_mw(self) -> float | None:
        return self.idle_power.mean_mw() if self.idle_power else None

    def energy_per_image_mj(self) -> float | None:
        """Energy that the module draws for an image, idle power included: `power_mw` over the images per second."""
        power = self.power_mw()
        return None if power is None else power / self.images_per_second()

    def net_energy_per_image_mj(self) -> float | None:
        """Energy that the module draws for an image, less what the idle module draws in that time."""
        power, idle = self.power_mw(), self.idle_power_mw()
        return None if power is None or idle is None else (power - idle) / self.images_per_second()

    def temperature_max_c(self) -> float | None:
        readings = (self.temperatures_before_c, *(self.temperatures_during_c or ()), self.temperatures_after_c)
        return max((degrees for reading in readings if reading for degrees in reading.values()), default=None)

    def gpu_load(self) -> float | None:
        """Mean share of the time that the GPU was busy, 0 to 1."""
        if not self.gpu_load_permille:
            return None
        return sum(self.gpu_load_permille) / len(self.gpu_load_permille) / 1000

    def use(self) -> str:
        """How the model was used: end to end, with a period or alternately. Only runs of one use are compared."""
        words = [
            *(["end to end"] if self.parts_ns else []),
            *([f"one per {self.period_ns / 1e6:g} ms"] if self.period_ns else []),
            *(["alternately"] if self.visit else []),
        ]
        return ", ".join(words) or CLOSED_LOOP

    def void(self) -> list[str]:
        """Say why these numbers are not this board's at these settings; such a run is shown and never judged."""
        return [text for check in doubts.VOIDS if (text := check(self))]

    def processor_ms(self) -> float | None:
        """Processor time of an inference; None where more than one thread works or waits for another, or a GPU."""
        if self.provider != "CPUExecutionProvider" or self.environment.get("threads") != "1" or not self.cpu_own_ns:
            return None
        return self.cpu_own_ns / len(self.latencies_ns) / 1e6

    def images(self) -> int:
        """Number of images in the window."""
        return self.batch * len(self.latencies_ns)

    def images_per_second(self) -> float:
        return self.images() * 1e9 / self.wall_ns

    def memory_drop_bytes(self) -> int | None:
        """How far the machine's available memory fell: where CPU and GPU share it, this counts both."""
        if self.memory_available_before_bytes is None or self.memory_available_min_bytes is None:
            return None
        return self.memory_available_before_bytes - self.memory_available_min_bytes

    def warnings(self) -> list[str]:
        """Say why these numbers may not be what they seem, each time with something to try."""
        return list(self.doubts().values())

    def doubts(self) -> dict[str, str]:
        """The warnings by their kind, of DOUBTS."""
        return {kind: text for kind, check in doubts.DOUBTS.items() if (text := check(self))}

    def is_busy(self) -> bool:
        """Say whether other programs had so much of the machine that its latencies are theirs as well."""
        return doubts.is_busy(self)

    def unsteadiness(self) -> float:
        """By what factor the machine's speed moved within the window; 1 where that is no reason for a warning."""
        return doubts.unsteadiness(self)

    def to_dict(self) -> dict[str, object]:
        times = {name: None if getattr(self, name) is None else list(getattr(self, name)) for name in _TIMES}
        parts = None if self.parts_ns is None else {name: list(part) for name, part in self.parts_ns.items()}
        return {"schema": SCHEMA, **asdict(self), **times, "parts_ns": parts}

    def to_json(self) -> str:
        """Return the run as one line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Raises: RecordError."""
        if not isinstance(data, dict) or "schema" not in data:
            raise RecordError('not a run: no "schema"')
        if type(data["schema"]) is not int or data["schema"] != SCHEMA:
            writer = f"edgevit {data['edgevit']}" if data.get("edgevit") else "an unknown version"
            raise RecordError(
                f"schema {data['schema']!r}, written by {writer}; this edgevit reads schema {SCHEMA}: measure again "
                "with this version"
            )
        values = {name: value for name, value in data.items() if name != "schema"}
        if odd := sorted(values.keys() ^ {name for name, _, _ in _CHECKS["Run"]}):
            raise RecordError(f"not a run: missing or unknown {', '.join(odd)}")
        for name in ("power", "idle_power"):
            values[name] = None if values[name] is None else Power.from_dict(values[name])
        _check_types(cls, values)
        for name in _SERIES:
            values[name] = None if values[name] is None else tuple(values[name])
        for times in (values["parts_ns"] or {}).values():
            if len(times) != len(values["latencies_ns"]):
                raise RecordError("parts_ns does not have one time for each inference")
        counted = {name: (values[name],) for name in ("batch", "streams", "wall_ns")}
        for name in ("period_ns", "visit"):
            counted[name] = (1 if values[name] is None else values[name],)
        timed = {name: values[name] for name in ("latencies_ns", "gpu_ns") if values[name] is not None}
        for name, numbers in {**counted, **timed}.items():
            if not numbers or min(numbers) < 1:
                raise RecordError(f"{name} is empty, or not above 0")
        if len(values["latencies_ns"]) % (values["visit"] or 1):
            raise RecordError("the latencies are not those of whole visits")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Raises: RecordError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
            raise RecordError(f"not JSON: {error}") from None
        return cls.from_dict(data)


def _nearest_rank(values: Sequence[int], percentile: float) -> int:
    """The smallest value that `percentile` % of all are at or below; `percentile` in (0, 100]."""
    return _at_rank(sorted(values), percentile)


def _at_rank(ordered: Sequence[int], percentile: float) -> int:
    return ordered[math.ceil(percentile * len(ordered) / 100) - 1]


def comparable(a: Run, b: Run) -> list[str]:
    """Return the names in `environment` on which two runs differ; they may be compared if there are none."""
    names = sorted(set(a.environment) | set(b.environment))
    return [name for name in names if a.environment.get(name) != b.environment.get(name)]


def _check_types(kind: type, data: Dict[str, Any]) -> None:
    """Check what was read from JSON against the annotations of a record."""
    for name, annotation, fits in _CHECKS[kind.__name__]:
        if not fits(data[name]):
            raise RecordError(f"{name} is not of type {annotation}")


def _check_of(annotation: str) -> Callable[[Any], bool]:
    """A function that says whether a value fits an annotation."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation.endswith(" | None"):
        fits = _check_of(annotation[: -len(" | None")])
        return lambda value: value is None or fits(value)
    if annotation.startswith(("tuple[", "Sequence[")):
        item = _check_of(annotation[annotation.index("[") + 1 : -1].replace(", ...", ""))
        return lambda value: isinstance(value, (list, tuple)) and all(map(item, value))
    item = _check_of(annotation[len("dict[str, ") : -len("]")])
    return lambda value: isinstance(value, dict) and all(map(_is_str, value)) and all(map(item, value.values()))


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) < value < 2**63  # larger ones do not fit into a float, and mean nothing


_PLAIN: Dict[str, Callable[[Any], bool]] = {
    "str": _is_str,
    "int": _is_int,
    "float": lambda value: _is_int(value) or (type(value) is float and math.isfinite(value)),
    "Power": lambda value: isinstance(value, Power),
}
# The fields of each record, with annotations and checks of values, are kept: a file may have many runs.
_CHECKS = {
    kind.__name__: [(field.name, str(field.type), _check_of(str(field.type))) for field in fields(kind)]
    for kind in (Power, Run)
}
