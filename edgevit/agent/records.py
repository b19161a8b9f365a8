"""What a measurement is. The board writes it, the host reads it.

Schema history: 1  first version
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, List

SCHEMA = 1

P99_SAMPLES = 100  # with fewer, the 99th percentile is the slowest inference
SPREAD = 0.10  # standard deviation over mean
OUTLIER = 5.0  # slowest over median
DRIFT = 0.05  # second half of the window over the first
CLOCK_STEPS = 100  # a latency is at least this many steps of the clock, so that one step is at most 1 %
WINDOW_NS = 1_000_000_000
CLOCKS_MOVED = 1.05  # highest over lowest clock of the fastest core
OTHERS = 0.10  # share of the cores' time that other programs took during the window


class RecordError(ValueError):
    """The text is not a run that this edgevit can read."""


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
    latencies_ns: tuple[int, ...]  # one per inference, after warm-up, in order
    wall_ns: int  # of the timed window, less the time the meters took
    load_ns: int  # from the file, already in the page cache, to a loaded model; without importing the runtime
    first_inference_ns: int
    warmup: int  # inferences between the first one and the window
    clock_step_ns: int  # smallest difference that the clock showed
    memory_peak_rss_bytes: int | None  # of the whole process, Python and runtime included
    memory_available_before_bytes: int | None  # of the machine, before the runtime was imported
    memory_available_min_bytes: int | None  # lowest seen from there to the end of the window
    memory_available_after_bytes: int | None  # with the model unloaded
    clocks_before_khz: dict[str, int] | None  # by core, right after warm-up
    clocks_during_khz: tuple[dict[str, int], ...] | None  # several times a second
    clocks_after_khz: dict[str, int] | None
    load_average_before: float | None  # of the machine, over the last minute
    cpu_busy_ns: int | None  # by all programs, on the cores this process may use, summed over cores, in the window
    cpu_own_ns: int | None  # the same, by this process alone
    environment: dict[str, str]  # what must match for two runs to be compared
    created: str  # UTC, ISO 8601

    def latency_ns(self, percentile: float) -> int:
        """Nearest rank: the smallest latency that `percentile` % of all are at or below; `percentile` in (0, 100]."""
        ordered = sorted(self.latencies_ns)
        return ordered[math.ceil(percentile * len(ordered) / 100) - 1]

    def p50_ns(self) -> int:
        return self.latency_ns(50)

    def p90_ns(self) -> int:
        return self.latency_ns(90)

    def p99_ns(self) -> int:
        return self.latency_ns(99)

    def mean_ns(self) -> float:
        return statistics.fmean(self.latencies_ns)

    def stddev_ns(self) -> float:
        """Sample standard deviation; 0 for a single sample."""
        return statistics.stdev(self.latencies_ns) if len(self.latencies_ns) > 1 else 0.0

    def images_per_second(self) -> float:
        return self.batch * len(self.latencies_ns) * 1e9 / self.wall_ns

    def memory_taken_bytes(self) -> int | None:
        """How far the machine's available memory fell: where CPU and GPU share it, this counts both."""
        if self.memory_available_before_bytes is None or self.memory_available_min_bytes is None:
            return None
        return self.memory_available_before_bytes - self.memory_available_min_bytes

    def warnings(self) -> list[str]:
        """Say why these numbers may not be what they seem, each time with something to try."""
        checks = (_few_samples, _short_window, _coarse_clock, _spread, _outlier, _drift, _clocks, _load, _others)
        return [text for text in (check(self) for check in checks) if text]

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
        if data["schema"] != SCHEMA:
            raise RecordError(f"schema {data['schema']!r}, and this edgevit reads schema {SCHEMA}: update edgevit")
        values = {name: value for name, value in data.items() if name != "schema"}
        odd = sorted({field.name for field in fields(cls)} ^ set(values))
        if odd:
            raise RecordError(f"not a run of schema {SCHEMA}: missing or unknown {', '.join(odd)}")
        if not _positive_integers(values["latencies_ns"]):
            raise RecordError("latencies_ns is not a list of nanoseconds")
        during = values["clocks_during_khz"]
        values["latencies_ns"] = tuple(values["latencies_ns"])
        values["clocks_during_khz"] = None if during is None else tuple(during)
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Raises: RecordError."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise RecordError(f"not JSON: {error}") from None


def comparable(a: Run, b: Run) -> list[str]:
    """Return the names in `environment` on which two runs differ; they may be compared if there are none."""
    names = sorted(set(a.environment) | set(b.environment))
    return [name for name in names if a.environment.get(name) != b.environment.get(name)]


def _positive_integers(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and bool(values) and all(type(v) is int and v > 0 for v in values)


def _few_samples(run: Run) -> str | None:
    count = len(run.latencies_ns)
    if count >= P99_SAMPLES:
        return None
    return f"p99 of {count} samples is just the slowest of them; try --samples {P99_SAMPLES} or more"


def _short_window(run: Run) -> str | None:
    if run.wall_ns >= WINDOW_NS:
        return None
    return f"the window lasted {run.wall_ns / 1e9:.2f} s, too short to see a machine slow down; try --min-seconds 10"


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


def _drift(run: Run) -> str | None:
    half = len(run.latencies_ns) // 2
    if half < 10:
        return None
    ratio = statistics.median(run.latencies_ns[half:]) / statistics.median(run.latencies_ns[:half])
    if abs(ratio - 1) <= DRIFT:
        return None
    change = "slower" if ratio > 1 else "faster"
    advice = "let the machine cool down" if ratio > 1 else "try a longer --warmup"
    return f"the second half of the window was {abs(ratio - 1):.0%} {change} than the first; {advice}"


def _clocks(run: Run) -> str | None:
    readings: List[Dict[str, int]] = [
        clocks for clocks in (run.clocks_before_khz, *(run.clocks_during_khz or ()), run.clocks_after_khz) if clocks
    ]
    if not readings:
        return None
    # The fastest core of each reading: idle cores slow down as they please.
    fastest = [max(clocks.values()) for clocks in readings]
    low, high = min(fastest), max(fastest)
    if high <= CLOCKS_MOVED * low:
        return None
    return (
        f"the CPU clock moved between {low / 1000:.0f} and {high / 1000:.0f} MHz; "
        "try the performance governor, a longer --warmup, or letting the machine cool down"
    )


def _load(run: Run) -> str | None:
    cores = int(run.environment.get("cores", "0"))
    if run.load_average_before is None or not cores or run.load_average_before <= cores:
        return None
    return f"the load average was {run.load_average_before:.1f} on {cores} cores; close other programs and run again"


def _others(run: Run) -> str | None:
    cores = int(run.environment.get("cores", "0"))
    if run.cpu_busy_ns is None or run.cpu_own_ns is None or not cores:
        return None
    share = (run.cpu_busy_ns - run.cpu_own_ns) / (run.wall_ns * cores)
    if share <= OTHERS:
        return None
    return f"other programs took {share:.0%} of the processor during the window; close them and run again"
