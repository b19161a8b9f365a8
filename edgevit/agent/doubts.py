"""Judge a run: doubts, each with something to try, and reasons for which its numbers are void."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from .records import Run

    Check = Callable[[Run], str | None]

P99_SAMPLES = 100  # with fewer, the 99th percentile is the slowest inference
_SPREAD = 0.10  # standard deviation over mean
_OUTLIER = 5.0  # slowest over median
_DRIFT = 0.05  # second half of the window over the first
_CLOCK_STEPS = 100  # a latency is at least this many steps of the clock, so that one step is at most 1 %
_WINDOW_NS = 1_000_000_000
_CLOCKS_MOVED = 1.05  # highest over lowest clock of the fastest core, or of the GPU
POWER_WINDOW_S = 10.0  # the rails' sensors average over 0.43 s: shorter windows are mostly their edges
_OTHERS = 0.10  # share of the cores' time that other programs took during the window


def _few_samples(run: Run) -> str | None:
    count = len(run.latencies_ns)
    if count >= P99_SAMPLES:
        return None
    return f"p99 of {count} samples is just the slowest of them; try --samples {P99_SAMPLES} or more"


def _short_window(run: Run) -> str | None:
    if run.wall_ns >= _WINDOW_NS:
        return None
    return f"the window lasted {run.wall_ns / 1e9:.2f} s, too short to see a machine slow down; try --duration 10"


def _coarse_clock(run: Run) -> str | None:
    if run.p50_ns() >= _CLOCK_STEPS * run.clock_step_ns:
        return None
    return f"one inference takes {run.p50_ns()} ns and the clock steps by {run.clock_step_ns} ns; try a larger --batch"


def _spread(run: Run) -> str | None:
    spread = run.stddev_ns() / run.mean_ns()
    if spread <= _SPREAD:
        return None
    return f"the standard deviation is {spread:.0%} of the mean; close other programs, or try more --samples"


def _outlier(run: Run) -> str | None:
    ratio = max(run.latencies_ns) / run.p50_ns()
    if ratio <= _OUTLIER:
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
    if abs(ratio - 1) <= _DRIFT:
        return None
    change = "slower" if ratio > 1 else "faster"
    advice = "let the machine cool down" if ratio > 1 else "try a longer --warmup"
    return f"the second half of the window was {abs(ratio - 1):.0%} {change} than the first; {advice}"


def _readings(run: Run) -> list[dict[str, int]]:
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
    if run.period_ns or run.parts_ns:  # it had pauses, in which clocks fall: that is what is measured
        return None
    on_gpu = run.gpu_ns is not None or run.streams > 1  # several streams are always on a GPU, and have no GPU times
    if not on_gpu or not clocks or max(clocks) <= _CLOCKS_MOVED * min(clocks):
        return None
    low, high = min(clocks) / 1000, max(clocks) / 1000
    return f"the GPU clock moved between {low:.0f} and {high:.0f} MHz; try --lock-clocks, or a longer --warmup-seconds"


def _no_graph(run: Run) -> str | None:
    state = run.environment.get("cuda_graph", "off")
    if state in ("on", "off"):
        return None
    return (
        f"a CUDA graph was {state}, so latency holds the launch of every kernel; "
        "compare it with runs of --option cuda_graph=False"
    )


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
    rails = ", ".join(run.power.rails)
    return f"which rails make up this module is not known, so there is no energy ({rails} were read); try --profile"


def _cpu_clocks(run: Run) -> tuple[int, int]:
    """The lowest and the highest clock of the fastest core; idle ones slow down as they please. Zeros: not known."""
    cores = [[khz for name, khz in reading.items() if name.startswith("cpu")] for reading in _readings(run)]
    fastest = [max(clocks) for clocks in cores if clocks]
    return min(fastest, default=0), max(fastest, default=0)


def _clocks(run: Run) -> str | None:
    low, high = _cpu_clocks(run)
    if high <= _CLOCKS_MOVED * low:
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
    if run.cpu_busy_ns is not None:
        return None  # then `_others` judges, for this window and the usable cores alone
    if run.load_average_before is None or not cores or run.load_average_before <= cores:
        return None
    return f"the load average was {run.load_average_before:.1f} on {cores} cores; close other programs and run again"


def _others(run: Run) -> str | None:
    cores = _cores(run)
    if run.cpu_busy_ns is None or run.cpu_own_ns is None or not cores:
        return None
    share = (run.cpu_busy_ns - run.cpu_own_ns) / (run.wall_ns * cores)
    if share <= _OTHERS:
        return None
    return f"other programs took {share:.0%} of the processor during the window; close them and run again"


DOUBTS: dict[str, Check] = {
    "few samples": _few_samples,
    "short window": _short_window,
    "coarse clock": _coarse_clock,
    "spread": _spread,
    "outlier": _outlier,
    "drift": _drift,
    "no graph": _no_graph,
    "missed": _missed,
    "clocks": _clocks,
    "load": _load,
    "other programs": _others,
    "short power window": _power_window,
    "no total": _no_total,
}

VOIDS: tuple[Check, ...] = (_throttled, _mode_changed, _gpu_clock)


def is_busy(run: Run) -> bool:
    """Say whether other programs had so much of the machine that its latencies are theirs as well."""
    return bool(_load(run) or _others(run))


def unsteadiness(run: Run) -> float:
    """By what factor the machine's speed moved within the window; 1 where that is no reason for a warning."""
    drift = _drift_ratio(run) if _drift(run) else 1.0
    low, high = _cpu_clocks(run) if _clocks(run) else (1, 1)
    return max(drift, 1 / drift, high / max(low, 1))
