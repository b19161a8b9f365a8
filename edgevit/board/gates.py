"""Gates: limits on measurements, such as `p99<8ms`, and the exit code of a bench.

A gate applies at every batch size and number of streams that was measured, or with `@` at one batch size: `p99@8<20ms`.
Of several repeats the worst counts: pooled with the others, a repeat that broke the gate would disappear among their
samples. So more repeats make a gate stricter.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from edgevit.agent.records import Run
from edgevit.board.comparison import group
from edgevit.board.facts import BoardFacts
from edgevit.errors import GateError, UnknownNameError

FAILED = 3
VOID = 4

# Units of each quantity in its smallest one, the one to suggest first.
UNITS: dict[str, dict[str, int]] = {
    "time": {"ms": 10**6, "us": 10**3, "ns": 1, "s": 10**9},
    "rate": {"/s": 1, "images/s": 1, "fps": 1},
    "bytes": {"MiB": 2**20, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "GiB": 2**30},
    "power": {"W": 10**3, "mW": 1},
    "energy": {"mJ": 10**3, "uJ": 1, "J": 10**6, "mJ/image": 10**3, "uJ/image": 1, "J/image": 10**6},
    "temperature": {"C": 1},
    "share": {"%": 1},
}

# What a figure takes to be measured, and what to try where that is missing.
_ADVICE = {
    "a run": "",
    "gpu": "the GPU's own times come from --runner tensorrt with one stream",
    "engine": "only --runner tensorrt knows what its engine takes",
    "meminfo": "it is read from /proc, which that machine does not offer",
    "nvmap": "it is read from /sys/kernel/debug, which takes a Jetson and the user root",
    "power": "it takes power sensors and the rails that make up the module; `edgevit board` says what is missing",
    "idle": "it takes power sensors, the module's rails and --idle above 0; `edgevit board` says what is missing",
    "thermal": "it is read from /sys/class/thermal, which that machine does not offer",
}

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_GATE = re.compile(
    r"\s*(?P<metric>\w+)\s*(?:@\s*(?P<batch>[0-9]{1,9}))?\s*(?P<comparison>[<>]=?)"
    r"\s*(?P<value>[-+]?(?i:nan|inf(?:inity)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?))\s*(?P<unit>.*?)\s*",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True)
class Metric:
    """A figure that a gate can limit."""

    quantity: str  # key of UNITS
    needs: str  # key of _ADVICE
    # Returns the figure of a run in the quantity's smallest unit; None: not measured.
    read: Callable[[Run], float | None]


def _gpu_percentile(percentile: float) -> Metric:
    return Metric("time", "gpu", lambda run: run.gpu_percentile_ns(percentile))


def _thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


METRICS: dict[str, Metric] = {
    "p50": Metric("time", "a run", Run.p50_ns),
    "p90": Metric("time", "a run", Run.p90_ns),
    "p95": Metric("time", "a run", Run.p95_ns),
    "p99": Metric("time", "a run", Run.p99_ns),
    "mean": Metric("time", "a run", Run.mean_ns),
    "max": Metric("time", "a run", lambda run: max(run.latencies_ns)),
    "gpu_p50": _gpu_percentile(50),
    "gpu_p90": _gpu_percentile(90),
    "gpu_p99": _gpu_percentile(99),
    "first": Metric("time", "a run", lambda run: run.first_inference_ns),
    "load": Metric("time", "a run", lambda run: run.load_ns),
    "throughput": Metric("rate", "a run", Run.images_per_second),
    "spread": Metric("share", "a run", lambda run: 100 * run.stddev_ns() / run.mean_ns()),
    "memory": Metric("bytes", "meminfo", Run.memory_drop_bytes),
    "rss": Metric("bytes", "meminfo", lambda run: run.memory_peak_rss_bytes),
    "engine": Metric("bytes", "engine", lambda run: run.memory_engine_bytes),
    "nvmap": Metric("bytes", "nvmap", lambda run: run.memory_nvmap_bytes),
    "power": Metric("power", "power", Run.power_mw),
    "idle": Metric("power", "idle", Run.idle_power_mw),
    "energy": Metric("energy", "power", lambda run: _thousand(run.energy_per_image_mj())),
    "net_energy": Metric("energy", "idle", lambda run: _thousand(run.net_energy_per_image_mj())),
    "temperature": Metric("temperature", "thermal", Run.temperature_max_c),
}


@dataclass(frozen=True)
class Gate:
    """A bound on one figure."""

    metric: str  # key of METRICS
    comparison: str  # key of _COMPARISONS
    value: float
    unit: str
    text: str  # the gate as the user wrote it
    batch: int | None = None  # batch size that the gate limits; None: every batch size
    source: str | None = None  # where the gate is from, such as "profile orin-nx-16gb"; None: the command line

    @property
    def units(self) -> int:
        return UNITS[METRICS[self.metric].quantity][self.unit]

    @property
    def limit(self) -> float:
        """The limit in the smallest unit of the quantity, exactly as written: 4.35 ms are 4350000 ns."""
        return float(Fraction(repr(self.value)) * self.units)

    def __str__(self) -> str:
        return f"{self.text} ({self.source})" if self.source else self.text


State = Literal["pass", "fail", "void", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """The result of one gate for one model at one batch size and number of streams."""

    gate: Gate
    label: str
    precision: str | None
    batch: int
    streams: int
    use: str
    repeats: int
    value: float | None  # worst figure of the repeats, in the gate's unit; None: not measured
    # Share of the limit to spare; negative: the limit is missed by it; None: not measured, or the limit is 0.
    margin: float | None
    state: State
    reasons: tuple[str, ...]  # why it is void; or why it was not measured, and what to try


def parse_gate(text: str, source: str | None = None) -> Gate:
    """Read METRIC<VALUE or METRIC@BATCH<VALUE; the comparison may be <, <=, > or >=, and the value has a unit.

    Raises:
        GateError: the text is not a gate, or its limit has no meaning.
    """
    title = f"gate {text!r}" + (f" of {source}" if source else "")
    match = _GATE.fullmatch(text)
    if match is None:
        raise GateError(f"{title} is not of the form METRIC<VALUE or METRIC@BATCH<VALUE; try 'p99<8ms'")
    name, number, unit = match["metric"], match["value"], match["unit"]
    if name not in METRICS:
        raise GateError(f"{title}: {UnknownNameError('metric', name, METRICS)}")
    units = UNITS[METRICS[name].quantity]
    limit = f"{name}{match['comparison']}{number}"
    if unit not in units:
        problem = f"{unit!r} is no unit of {name}" if unit else "the unit is missing"
        raise GateError(f"{title}: {problem}; try '{limit}{next(iter(units))}', or one of {', '.join(units)}")
    value = float(number)
    if not math.isfinite(value) or value < 0:
        raise GateError(f"{title}: {number} is not a bound of anything measured; try a number from 0 on")
    batch = int(match["batch"]) if match["batch"] else None
    if batch == 0:
        raise GateError(f"{title}: no batch has 0 images; try '{name}@1{match['comparison']}{number}{unit}'")
    return Gate(name, match["comparison"], value, unit, text.strip(), batch, source)


def measurable(
    facts: BoardFacts, runner: str, *, streams: int = 1, total_rails: bool = True, idle: bool = True
) -> set[str]:
    """Return the metrics that a board with these facts can measure with that runner.

    `total_rails`: whether the rails of the module are known; `idle`: whether its idle power will be read.
    """
    power = total_rails and facts.has_power
    sources = {
        "a run": True,
        "gpu": runner == "tensorrt" and streams == 1,
        "engine": runner == "tensorrt",
        "meminfo": facts.memory.available_bytes is not None,
        "nvmap": facts.root and facts.module.part is not None,
        "power": power,
        "idle": power and idle,
        "thermal": bool(facts.temperatures_c),
    }
    return {name for name, metric in METRICS.items() if sources[metric.needs]}


def check_measurable(gates: Iterable[Gate], available: Collection[str], batches: Collection[int] = ()) -> None:
    """Refuse gates that the coming measurement cannot judge.

    Raises:
        GateError: a metric is not `available`, or no batch size of a gate is in `batches`.
    """
    for gate in gates:
        if gate.metric not in available:
            advice = _ADVICE[METRICS[gate.metric].needs]
            raise GateError(f"gate {gate}: {gate.metric} cannot be measured there: {advice}")
        if batches and gate.batch is not None and gate.batch not in batches:
            sizes = ", ".join(map(str, sorted(batches)))
            raise GateError(
                f"gate {gate} is about batch {gate.batch}, and {sizes} are measured; add --batch {gate.batch}"
            )


def check_paced(gates: Iterable[Gate]) -> None:
    """Refuse gates that have no meaning where a period decides when an inference begins.

    Raises:
        GateError: a gate limits images per second, which the period decides.
    """
    for gate in gates:
        if gate.metric == "throughput":
            raise GateError(f"gate {gate}: with --period-ms images per second are given; try p99 below the period")


def verdicts_of(gates: Iterable[Gate], runs: Iterable[Run]) -> tuple[Verdict, ...]:
    """Judge each model at each batch size and number of streams by each gate that applies.

    Raises:
        GateError: a gate applies to none of the runs, and would pass silently.
    """
    groups = group(runs)
    uses = list(dict.fromkeys(runs_of_one_use[0].use() for runs_of_one_use in groups))
    verdicts = []
    for gate in gates:
        if len(uses) > 1:
            raise GateError(f"gate {gate} is about one use of a model, and these inferences were {' and '.join(uses)}")
        judged = [repeats for repeats in groups if gate.batch in (None, repeats[0].batch)]
        if not judged:
            raise GateError(f"gate {gate} is about none of the runs; measure what it is about, or leave it out")
        verdicts += [_judge(gate, repeats) for repeats in judged]
    return tuple(verdicts)


def exit_code(verdicts: Iterable[Verdict], runs: Iterable[Run]) -> int:
    """Return 4 if a run is void, 3 if a gate failed, 1 if a gate could not be judged, else 0."""
    states = {verdict.state for verdict in verdicts}
    if any(run.void() for run in runs):
        return VOID
    return FAILED if "fail" in states else int("not measured" in states)


def _judge(gate: Gate, repeats: Sequence[Run]) -> Verdict:
    metric, below = METRICS[gate.metric], gate.comparison.startswith("<")
    values = [value for run in repeats if (value := metric.read(run)) is not None]
    void = tuple(dict.fromkeys(reason for run in repeats for reason in run.void()))
    worst = (max if below else min)(values, default=None)
    margin = None
    if worst is not None and gate.limit:
        margin = (gate.limit - worst if below else worst - gate.limit) / gate.limit
    state, reasons = _state(gate, worst if len(values) == len(repeats) else None, void)
    first = repeats[0]
    return Verdict(
        gate=gate,
        label=first.label,
        precision=first.precision,
        batch=first.batch,
        streams=first.streams,
        use=first.use(),
        repeats=len(repeats),
        value=None if worst is None else worst / gate.units,
        margin=margin,
        state=state,
        reasons=reasons,
    )


def _state(gate: Gate, worst: float | None, void: tuple[str, ...]) -> tuple[State, tuple[str, ...]]:
    if void:
        return "void", void
    if worst is None:
        return "not measured", (_ADVICE[METRICS[gate.metric].needs],)
    return ("pass" if _COMPARISONS[gate.comparison](worst, gate.limit) else "fail"), ()
