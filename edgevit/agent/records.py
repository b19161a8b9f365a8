"""What a measurement is. The board writes it, the host reads it.

Schema history: 1  first version
                2  streams, GPU times, power, temperatures, throttling, power mode, GPU load, engine memory; runs of
                   schema 1 are still read: they had one stream, and the rest was not measured
                3  session, round and turn: which runs were made together; of those of schema 1 and 2 it is not known
                4  edgevit: which one asked for the run; of those of schema 1 to 3 it is not known
                5  period_ns, missed and parts_ns: a model as it is used; inferences of schema 1 to 4 followed one
                   another without a pause, on input that was there
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from typing import Any, Callable, Dict, List, Sequence

SCHEMA = 5

# Fields that a schema brought, and that runs of the schemas before it leave unmeasured.
NEW_IN = {
    2: (
        *("gpu_ns", "memory_engine_bytes", "memory_nvmap_bytes", "gpu_load_permille", "temperatures_before_c"),
        *("temperatures_during_c", "temperatures_after_c", "throttled", "power_mode_before", "power_mode_after"),
        *("power", "idle_power"),
    ),
    3: ("session", "round", "turn"),
    4: ("edgevit",),
    5: ("period_ns", "missed", "parts_ns"),
}

# Fields of a run that JSON turns from tuples into lists.
SERIES = ("latencies_ns", "gpu_ns", "clocks_during_khz", "gpu_load_permille", "temperatures_during_c", "throttled")

CLOSED_LOOP = "one after another"  # the use of a run that has no other
P99_SAMPLES = 100  # with fewer, the 99th percentile is the slowest inference
SPREAD = 0.10  # standard deviation over mean
OUTLIER = 5.0  # slowest over median
DRIFT = 0.05  # second half of the window over the first
CLOCK_STEPS = 100  # a latency is at least this many steps of the clock, so that one step is at most 1 %
WINDOW_NS = 1_000_000_000
CLOCKS_MOVED = 1.05  # highest over lowest clock of the fastest core, or of the GPU
POWER_WINDOW_S = 10.0  # the rails' sensors average over 0.43 s: shorter windows are mostly their edges
OTHERS = 0.10  # share of the cores' time that other programs took during the window


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
    times_ns: tuple[int, ...]  # of the same clock as the window
    total: tuple[str, ...]  # the rails that make up the module; empty: not known, and so is the energy
    interval_ms: float | None  # time constant of the sensor's running mean; None: it does not say
    window_started_ns: int
    window_ended_ns: int

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
        owed = _at(self.times_ns, milliwatts, end) - _at(self.times_ns, milliwatts, start)
        drawn = _integral(self.times_ns, milliwatts, start, end) + owed * (self.interval_ms or 0) * 1e6
        return drawn / (end - start)

    def window_s(self) -> float:
        """All of it: unlike a run's wall time, with what the meters took, as the module draws power then, too."""
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
        times, rails, total = data["times_ns"], data["rails"], data["total"]
        if any(a > b for a, b in zip(times, times[1:])):
            raise RecordError("power has times that do not ascend")
        if any(len(row) != len(times) for row in rails.values()) or not set(total) <= set(rails):
            raise RecordError("power has rails without a reading at each time, or a total of rails that are not there")
        rows = {name: tuple(float(milliwatts) for milliwatts in row) for name, row in rails.items()}
        return cls(**{**data, "rails": rows, "times_ns": tuple(times), "total": tuple(total)})


def _at(times: Sequence[int], values: Sequence[float], time: int) -> float:
    """Linear between readings, and constant before the first and after the last."""
    i = bisect_left(times, time)
    if i == 0 or i == len(times):
        return values[min(i, len(times) - 1)]
    left, right = times[i - 1], times[i]
    return values[i - 1] + (values[i] - values[i - 1]) * (time - left) / (right - left)


def _integral(times: Sequence[int], values: Sequence[float], start: int, end: int) -> float:
    """By trapezoids, exact for what is linear between readings."""
    inside = [(time, value) for time, value in zip(times, values) if start < time < end]
    points = [(start, _at(times, values, start)), *inside, (end, _at(times, values, end))]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(points, points[1:]))


@dataclass(frozen=True)
class Run:
    """One process running one model at one batch size, kept raw: percentiles and means are computed, never stored.

    `None` means "not measured on this machine"; it is never written as 0.
    """

    label: str  # what a table calls the model, e.g. the name of its folder
    model: str  # file name, e.g. "model.fp16.onnx"
    model_sha256: str
    precision: str | None  # of the weights and of the arithmetic, e.g. "fp16"
    runner: str  # name of the file in agent/runners/
    provider: str | None  # what the runner really ran on, in its own words, e.g. "CPUExecutionProvider"
    batch: int  # images per inference
    streams: int  # inferences under way at once
    latencies_ns: tuple[int, ...]  # one per inference, after warm-up, in order
    gpu_ns: tuple[int, ...] | None  # the same inferences by the GPU's own clock, without the host's share
    wall_ns: int  # of the timed window, less the time the meters took
    load_ns: int  # from the file, already in the page cache, to a loaded model; without importing the runtime
    first_inference_ns: int
    warmup: int  # inferences between the first one and the window
    clock_step_ns: int  # smallest difference that the clock showed
    memory_peak_rss_bytes: int | None  # of the whole process, Python and runtime included
    memory_available_before_bytes: int | None  # of the machine, before the runtime was imported
    memory_available_min_bytes: int | None  # lowest seen from there to the end of the window
    memory_available_after_bytes: int | None  # with the model unloaded
    memory_engine_bytes: int | None  # weights and activations, by the runtime's own account
    memory_nvmap_bytes: int | None  # GPU memory of this process, by the kernel's account; needs root
    clocks_before_khz: dict[str, int] | None  # "cpu0" ..., "gpu", "emc"; right after warm-up
    clocks_during_khz: tuple[dict[str, int], ...] | None  # several times a second
    clocks_after_khz: dict[str, int] | None
    load_average_before: float | None  # of the machine, over the last minute
    cpu_busy_ns: int | None  # by all programs, on the cores this process may use, summed over cores, in the window
    cpu_own_ns: int | None  # the same, by this process alone
    gpu_load_permille: tuple[int, ...] | None  # several times a second
    temperatures_before_c: dict[str, float] | None  # by thermal zone, right after warm-up
    temperatures_during_c: tuple[dict[str, float], ...] | None
    temperatures_after_c: dict[str, float] | None
    throttled: tuple[str, ...] | None  # what the kernel held back during the window; empty: it watched, and nothing
    power_mode_before: str | None
    power_mode_after: str | None
    power: Power | None
    idle_power: Power | None  # the same with nothing running, before the model was loaded
    session: str | None  # of the bench that made it, whose runs share the board's state; None: measured by itself
    round: int | None  # of the session, from 1: each model is measured once in it
    turn: int | None  # its place among all runs of the session, from 1
    environment: dict[str, str]  # what must match for two runs to be compared
    created: str  # UTC, ISO 8601
    edgevit: str | None = None  # that of the host, which writes it in: the agent knows no version
    period_ns: int | None = None  # between the beginnings of two inferences; None: one after another, without a pause
    missed: int | None = None  # periods in which none began, as the one before was not over; None: there are none
    # A time per inference of each part of it: "decode", "preprocess", "copy in", "inference", and on a GPU "copy out".
    # None: an inference begins with input that is there; else a latency is end to end, and a bit more than its parts.
    parts_ns: dict[str, tuple[int, ...]] | None = None

    def latency_ns(self, percentile: float) -> int:
        """Nearest rank: the smallest latency that `percentile` % of all are at or below; `percentile` in (0, 100]."""
        return nearest_rank(self.latencies_ns, percentile)

    def p50_ns(self) -> int:
        return self.latency_ns(50)

    def p90_ns(self) -> int:
        return self.latency_ns(90)

    def p95_ns(self) -> int:
        return self.latency_ns(95)

    def p99_ns(self) -> int:
        return self.latency_ns(99)

    def mean_ns(self) -> float:
        return statistics.fmean(self.latencies_ns)

    def stddev_ns(self) -> float:
        """Sample standard deviation; 0 for a single sample."""
        return statistics.stdev(self.latencies_ns) if len(self.latencies_ns) > 1 else 0.0

    def gpu_percentile_ns(self, percentile: float) -> int | None:
        return None if self.gpu_ns is None else nearest_rank(self.gpu_ns, percentile)

    def power_mw(self) -> float | None:
        """Mean power of the whole module over the window."""
        return self.power.mean_mw() if self.power else None

    def idle_power_mw(self) -> float | None:
        return self.idle_power.mean_mw() if self.idle_power else None

    def energy_per_image_mj(self) -> float | None:
        """Gross: all that the module drew, over the images of the window."""
        energy = self.power.energy_mj() if self.power else None
        return None if energy is None else energy / self.images()

    def net_energy_per_image_mj(self) -> float | None:
        """Less what the module draws when it does nothing."""
        energy, idle = self.power.energy_mj() if self.power else None, self.idle_power_mw()
        if self.power is None or energy is None or idle is None:
            return None
        return (energy - idle * self.power.window_s()) / self.images()

    def temperature_max_c(self) -> float | None:
        readings = (self.temperatures_before_c, *(self.temperatures_during_c or ()), self.temperatures_after_c)
        return max((degrees for reading in readings if reading for degrees in reading.values()), default=None)

    def gpu_load(self) -> float | None:
        """Mean share of the time that the GPU was busy, 0 to 1."""
        return statistics.fmean(self.gpu_load_permille) / 1000 if self.gpu_load_permille else None

    def use(self) -> str:
        """How inferences followed each other, and where each began; runs of different use are not comparable."""
        words = [
            *(["end to end"] if self.parts_ns else []),
            *([f"one per {self.period_ns / 1e6:g} ms"] if self.period_ns else []),
        ]
        return ", ".join(words) or CLOSED_LOOP

    def void(self) -> list[str]:
        """Say why these numbers are not this board's at these settings; such a run is shown and never judged."""
        return [text for text in (check(self) for check in (_throttled, _mode_changed, _gpu_clock)) if text]

    def processor_ms(self) -> float | None:
        """Processor time of an inference; None where more than one thread works or waits for another, or a GPU."""
        if self.provider != "CPUExecutionProvider" or self.environment.get("threads") != "1" or not self.cpu_own_ns:
            return None
        return self.cpu_own_ns / len(self.latencies_ns) / 1e6

    def images(self) -> int:
        """Of the window."""
        return self.batch * len(self.latencies_ns)

    def images_per_second(self) -> float:
        return self.images() * 1e9 / self.wall_ns

    def memory_taken_bytes(self) -> int | None:
        """How far the machine's available memory fell: where CPU and GPU share it, this counts both."""
        if self.memory_available_before_bytes is None or self.memory_available_min_bytes is None:
            return None
        return self.memory_available_before_bytes - self.memory_available_min_bytes

    def warnings(self) -> list[str]:
        """Say why these numbers may not be what they seem, each time with something to try."""
        return list(self.doubts().values())

    def doubts(self) -> dict[str, str]:
        """The warnings by their kind, of DOUBTS."""
        return {kind: text for kind, check in DOUBTS.items() if (text := check(self))}

    def is_busy(self) -> bool:
        """Say whether other programs had so much of the machine that its latencies are theirs as well."""
        return bool(_load(self) or _others(self))

    def unsteadiness(self) -> float:
        """By what factor the machine's speed moved within the window; 1 where that is no reason for a warning."""
        drift = _drift_ratio(self) if _drift(self) else 1.0
        low, high = _cpu_clocks(self) if _clocks(self) else (1, 1)
        return max(drift, 1 / drift, high / max(low, 1))

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Raises: RecordError."""
        if not isinstance(data, dict) or "schema" not in data:
            raise RecordError('not a run: no "schema"')
        schema = data["schema"]
        if type(schema) is not int or not 1 <= schema <= SCHEMA:
            raise RecordError(f"schema {schema!r}, and this edgevit reads schema 1 to {SCHEMA}: update edgevit")
        values = {name: value for name, value in data.items() if name != "schema"}
        if schema == 1:
            values = {"streams": 1, **values}
        for version in range(schema + 1, SCHEMA + 1):
            values = {**dict.fromkeys(NEW_IN[version]), **values}
        odd = sorted({field.name for field in fields(cls)} ^ set(values))
        if odd:
            raise RecordError(f"not a run of schema {schema}: missing or unknown {', '.join(odd)}")
        for name in ("power", "idle_power"):
            values[name] = None if values[name] is None else Power.from_dict(values[name])
        _check_types(cls, values)
        for name in SERIES:
            values[name] = None if values[name] is None else tuple(values[name])
        if values["parts_ns"] is not None:
            values["parts_ns"] = {name: tuple(times) for name, times in values["parts_ns"].items()}
            if any(len(times) != len(values["latencies_ns"]) for times in values["parts_ns"].values()):
                raise RecordError("parts_ns does not have one time for each inference")
        counted = {name: (values[name],) for name in ("batch", "streams", "wall_ns")}
        counted["period_ns"] = (1 if values["period_ns"] is None else values["period_ns"],)
        timed = {name: values[name] for name in ("latencies_ns", "gpu_ns") if values[name] is not None}
        for name, numbers in {**counted, **timed}.items():
            if not numbers or min(numbers) < 1:
                raise RecordError(f"{name} is empty, or not above 0")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Raises: RecordError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
            raise RecordError(f"not JSON: {error}") from None
        return cls.from_dict(data)


def nearest_rank(values: Sequence[int], percentile: float) -> int:
    """The smallest value that `percentile` % of all are at or below; `percentile` in (0, 100]."""
    ordered = sorted(values)
    return ordered[math.ceil(percentile * len(ordered) / 100) - 1]


def comparable(a: Run, b: Run) -> list[str]:
    """Return the names in `environment` on which two runs differ; they may be compared if there are none."""
    names = sorted(set(a.environment) | set(b.environment))
    return [name for name in names if a.environment.get(name) != b.environment.get(name)]


def _check_types(kind: type, data: Dict[str, Any]) -> None:
    """Check what was read from JSON against the annotations of a record."""
    for field in fields(kind):
        if not _fits(data[field.name], str(field.type)):
            raise RecordError(f"{field.name} is not of type {field.type}")


def _fits(value: Any, annotation: str) -> bool:
    if annotation in _PLAIN:
        return _PLAIN[annotation](value)
    if annotation.endswith(" | None"):
        return value is None or _fits(value, annotation[: -len(" | None")])
    if annotation.startswith("tuple["):
        item = annotation[len("tuple[") : -len(", ...]")]
        return isinstance(value, (list, tuple)) and all(_fits(v, item) for v in value)
    item = annotation[len("dict[str, ") : -len("]")]
    return isinstance(value, dict) and all(isinstance(k, str) and _fits(v, item) for k, v in value.items())


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63  # larger ones do not fit into a float, and mean nothing


_PLAIN: Dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_int,
    "float": lambda value: _is_int(value) or (type(value) is float and math.isfinite(value)),
    "Power": lambda value: isinstance(value, Power),
}


def _few_samples(run: Run) -> str | None:
    count = len(run.latencies_ns)
    if count >= P99_SAMPLES:
        return None
    return f"p99 of {count} samples is just the slowest of them; try --samples {P99_SAMPLES} or more"


def _short_window(run: Run) -> str | None:
    if run.wall_ns >= WINDOW_NS:
        return None
    return f"the window lasted {run.wall_ns / 1e9:.2f} s, too short to see a machine slow down; try --duration 10"


def _coarse_clock(run: Run) -> str | None:
    if run.p50_ns() >= CLOCK_STEPS * run.clock_step_ns:
        return None
    return f"one inference takes {run.p50_ns()} ns and the clock steps by {run.clock_step_ns} ns; try a larger --batch"


def _spread(run: Run) -> str | None:
    spread = run.stddev_ns() / run.mean_ns()
    if spread <= SPREAD:
        return None
    return f"the standard deviation is {spread:.0%} of the mean; close other programs, or try more --samples"


def _outlier(run: Run) -> str | None:
    ratio = max(run.latencies_ns) / run.p50_ns()
    if ratio <= OUTLIER:
        return None
    return f"the slowest inference took {ratio:.0f} times the median; close other programs and run again"


def _drift_ratio(run: Run) -> float:
    """The second half of the window over the first."""
    half = len(run.latencies_ns) // 2
    if half < 10:
        return 1.0
    return statistics.median(run.latencies_ns[half:]) / statistics.median(run.latencies_ns[:half])


def _drift(run: Run) -> str | None:
    ratio = _drift_ratio(run)
    if abs(ratio - 1) <= DRIFT:
        return None
    change = "slower" if ratio > 1 else "faster"
    advice = "let the machine cool down" if ratio > 1 else "try a longer --warmup"
    return f"the second half of the window was {abs(ratio - 1):.0%} {change} than the first; {advice}"


def _readings(run: Run) -> List[Dict[str, int]]:
    return [c for c in (run.clocks_before_khz, *(run.clocks_during_khz or ()), run.clocks_after_khz) if c]


def _throttled(run: Run) -> str | None:
    if not run.throttled:
        return None
    return f"the board held itself back ({'; '.join(run.throttled)}); let it cool down, or check fan and power supply"


def _mode_changed(run: Run) -> str | None:
    before, after = run.power_mode_before, run.power_mode_after
    if before is None or after is None or before == after:
        return None
    return f"the power mode changed from {before} to {after} during the run; run again, and leave it alone"


def _gpu_clock(run: Run) -> str | None:
    """A GPU that ran the model all the time had no reason of its own to change its clock; before and after, it had."""
    clocks = [reading["gpu"] for reading in run.clocks_during_khz or () if "gpu" in reading]
    on_gpu = run.gpu_ns is not None or run.streams > 1  # which have no GPU times
    on_gpu = on_gpu and run.use() == CLOSED_LOOP  # else it has pauses, in which clocks fall: that is what is measured
    if not on_gpu or not clocks or max(clocks) <= CLOCKS_MOVED * min(clocks):
        return None
    low, high = min(clocks) / 1000, max(clocks) / 1000
    return f"the GPU clock moved between {low:.0f} and {high:.0f} MHz; try --lock-clocks, or a longer --warmup-seconds"


def _missed(run: Run) -> str | None:
    if not run.missed:
        return None
    periods = run.missed + len(run.latencies_ns)
    return f"{run.missed} of {periods} periods were missed, as an inference took longer; try a longer --period-ms"


def _power_window(run: Run) -> str | None:
    if run.power is None or run.power.window_s() >= POWER_WINDOW_S:
        return None
    seconds = run.power.window_s()
    return f"power was read over {seconds:.1f} s only, and its sensor averages slowly; try --duration 10 or more"


def _no_total(run: Run) -> str | None:
    if run.power is None or run.power.total:
        return None
    seen = ", ".join(run.power.rails)
    return f"which rails make up this module is not known, so there is no energy ({seen} were read); try --profile"


def _cpu_clocks(run: Run) -> tuple[int, int]:
    """The lowest and the highest clock of the fastest core; idle ones slow down as they please. Zeros: not known."""
    cores = [[khz for name, khz in reading.items() if name.startswith("cpu")] for reading in _readings(run)]
    fastest = [max(clocks) for clocks in cores if clocks]
    return min(fastest, default=0), max(fastest, default=0)


def _clocks(run: Run) -> str | None:
    low, high = _cpu_clocks(run)
    if high <= CLOCKS_MOVED * low:
        return None
    return (
        f"the CPU clock moved between {low / 1000:.0f} and {high / 1000:.0f} MHz; "
        "try the performance governor, a longer --warmup, or letting the machine cool down"
    )


def _cores(run: Run) -> int:
    text = run.environment.get("cores", "")
    return int(text) if text.isdecimal() else 0


def _load(run: Run) -> str | None:
    cores = _cores(run)
    if run.load_average_before is None or not cores or run.load_average_before <= cores:
        return None
    return f"the load average was {run.load_average_before:.1f} on {cores} cores; close other programs and run again"


def _others(run: Run) -> str | None:
    cores = _cores(run)
    if run.cpu_busy_ns is None or run.cpu_own_ns is None or not cores:
        return None
    share = (run.cpu_busy_ns - run.cpu_own_ns) / (run.wall_ns * cores)
    if share <= OTHERS:
        return None
    return f"other programs took {share:.0%} of the processor during the window; close them and run again"


DOUBTS: Dict[str, Callable[[Run], "str | None"]] = {
    "few samples": _few_samples,
    "short window": _short_window,
    "coarse clock": _coarse_clock,
    "spread": _spread,
    "outlier": _outlier,
    "drift": _drift,
    "missed": _missed,
    "clocks": _clocks,
    "load": _load,
    "other programs": _others,
    "short power window": _power_window,
    "no total": _no_total,
}
