"""The one place that times an inference.

Load, first inference and warm inference are three regimes, and are told apart. Loading reads a file that is already in
the page cache and excludes importing the runtime. The first inference allocates and, on a GPU, compiles. Then, after a
warm-up, come the samples: a monotonic clock around each call, and nothing else between its two readings. Meters are
read and progress is told between inferences, a few times a second; no thread competes with what is measured, and the
time they take is left out of the window.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Callable

from .environment import describe_environment
from .meters import AnyMeter, clocks, load, memory
from .records import Run
from .runners import Loaded, RunnerError, import_runner

TICK_NS = 200_000_000  # between two readings of the meters

Report = Callable[[str, float], None]  # stage, and how much of it is done, 0 to 1


@dataclass(frozen=True)
class Request:
    """One measurement to make, and what the host knows about the model."""

    model: str  # path on the machine that measures
    model_sha256: str
    label: str
    precision: str | None
    runner: str
    batch: int
    samples: int = 200  # at least
    min_seconds: float = 1.0  # of the timed window, at least
    warmup: int = 10  # inferences, at least, after the first one
    warmup_seconds: float = 0.5  # at least
    options: dict[str, Any] = field(default_factory=dict)  # the runner's own


def measure(request: Request, report: Report, root: str = "/") -> Run:
    """Raises: RunnerError."""
    runner = import_runner(request.runner)
    meters = (memory.Meter(root), clocks.Meter(root), load.Meter(root))
    with meters[0]:
        report("load", 0.0)
        import_requirements(runner)
        started = perf_counter_ns()
        with runner.open_runner(request.model, request.batch, **request.options) as loaded:
            load_ns = perf_counter_ns() - started
            timed = _time(loaded, request, report, meters)
    figures = {name: value for meter in meters for name, value in meter.figures().items()}
    return Run(
        label=request.label,
        model=os.path.basename(request.model),
        model_sha256=request.model_sha256,
        precision=request.precision,
        runner=request.runner,
        provider=loaded.provider,
        batch=request.batch,
        load_ns=load_ns,
        clock_step_ns=clock_step_ns(),
        environment={**describe_environment(root), **loaded.environment},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **timed,
        **figures,
    )


def import_requirements(runner: ModuleType) -> None:
    """Import what the runner needs: the first thing to be missing on a bare machine, and no part of loading a model."""
    for name in runner.REQUIRES:
        try:
            import_module(name)
        except ImportError as error:
            raise RunnerError(f"{sys.executable} cannot import {name} ({error}); install it there") from error


def _time(loaded: Loaded, request: Request, report: Report, meters: tuple[AnyMeter, ...]) -> dict[str, Any]:
    """Run the three regimes; the first meter is open already, the others are for the window alone."""
    first, _ = repeat(loaded.infer, 1, 0.0)
    warm, _ = repeat(loaded.infer, request.warmup, request.warmup_seconds, lambda done: report("warm up", done))

    def tick(done: float) -> None:
        report("measure", done)
        for meter in meters:
            meter.read()

    meters[0].read()
    with ExitStack() as window:
        for meter in meters[1:]:
            window.enter_context(meter)
        latencies, wall_ns = repeat(loaded.infer, request.samples, request.min_seconds, tick)
    meters[0].read()
    return {
        "first_inference_ns": first[0],
        "warmup": len(warm),
        "latencies_ns": tuple(latencies),
        "wall_ns": wall_ns,
    }


def repeat(
    infer: Callable[[], object], samples: int, min_seconds: float, tick: Callable[[float], None] = lambda done: None
) -> tuple[list[int], int]:
    """Run until both `samples` and `min_seconds` are reached; return each latency, and the wall time without ticks."""
    min_ns = int(min_seconds * 1e9)
    latencies: list[int] = []
    began = perf_counter_ns()
    next_tick, ticks_ns, now = began + TICK_NS, 0, began
    while len(latencies) < samples or now - began - ticks_ns < min_ns:
        start = perf_counter_ns()
        infer()
        now = perf_counter_ns()
        latencies.append(now - start)
        if now >= next_tick:
            tick(min(1.0, len(latencies) / max(samples, 1), (now - began) / max(min_ns, 1)))
            ticked = perf_counter_ns()
            ticks_ns += ticked - now
            now, next_tick = ticked, ticked + TICK_NS
    return latencies, now - began - ticks_ns


def clock_step_ns() -> int:
    """Return the smallest step seen between readings of the clock; its nominal resolution says little."""
    readings = [perf_counter_ns() for _ in range(1000)]
    return min((b - a for a, b in zip(readings, readings[1:]) if b > a), default=1)
