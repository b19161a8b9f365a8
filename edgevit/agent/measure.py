"""The one place that times an inference.

Load, first inference and warm inference are measured separately. Loading reads a file that is already in the page cache
and excludes importing the runtime. The first inference allocates and, on a GPU, compiles. Then, after a warm-up, come
the samples: a monotonic clock around each call, and nothing else between its two readings. Meters are
read and progress is sent between inferences, a few times a second; no thread competes with what is measured, and the
time they take is left out of the window. With several streams there is no moment between inferences: there one is made,
by letting all of them finish what they have begun.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Callable, Sequence

from .camera import Camera, EndToEnd
from .environment import describe_environment
from .meters import AnyMeter, clocks, gpu, load, memory, nvpmodel, thermal
from .onnx_runtime import import_onnxruntime
from .pace import Pace
from .power import PowerMeter, power_meter
from .records import Power, Run
from .runners import Lane, Loaded, RunnerError, import_runner

TICK_NS = 200_000_000  # time between two readings of the meters
# Minimum of batches per stream between two readings: letting all finish costs part of a batch's time.
_LANE_BATCHES = 10

Report = Callable[..., None]  # stage, how much of it is done, 0 to 1, and figures to show beside it


@dataclass(frozen=True)
class MeasurementRequest:
    """One measurement to make, and what the host knows about the model."""

    model: str  # path of the model on the machine that measures
    model_sha256: str
    label: str
    precision: str | None
    runner: str
    batch: int
    samples: int = 200  # minimum number of inferences in the timed window
    duration_s: float = 1.0  # minimum duration of the timed window
    warmup: int = 10  # minimum number of inferences between the first one and the window
    warmup_seconds: float = 0.5  # minimum duration of these inferences
    options: dict[str, Any] = field(default_factory=dict)  # options of the runner
    power_meter: str | None = None  # name of a file in meters/; None: the best meter that can be read
    # Number of the bench's round that this is a part of, counted from its first; None: no rounds.
    round: int | None = None
    # I2C address and label of each rail that counts towards the module's power.
    total_rails: tuple[tuple[str, str], ...] = ()
    period_ms: float | None = None  # time between the beginnings of two inferences; None: one follows another
    # Paths, on the machine that measures, of pictures that inferences decode; empty: random input.
    images: Sequence[str] = ()
    # The model's preprocessing of these pictures; None: there are no pictures.
    preprocessing: dict[str, Any] | None = None


def measure(request: MeasurementRequest, report: Report, root: str = "/") -> Run:
    """Raises: RunnerError."""
    runner = import_runner(request.runner)
    power = power_meter(root, request.power_meter, request.total_rails)
    heat = thermal.Meter(root)
    around: tuple[AnyMeter, ...] = (memory.Meter(root), nvpmodel.Meter(root))
    speeds = clocks.Meter(root)
    within: tuple[AnyMeter, ...] = (speeds, heat, *(kind.Meter(root) for kind in (gpu, load)))
    # Clocks come first: what reads the others leaves the GPU idle for milliseconds, after which it may be slower.
    everything: tuple[AnyMeter, ...] = (speeds, *around, *((power,) if power else ()), *within[1:])
    ticks_ns: list[int] = []
    with ExitStack() as opened:
        for meter in around:
            opened.enter_context(meter)
        report("load", 0.0)
        import_requirements(runner)
        started = perf_counter_ns()
        loaded = opened.enter_context(runner.open_runner(request.model, request.batch, **request.options))
        load_ns = perf_counter_ns() - started

        def tick(done: float) -> None:
            began = perf_counter_ns()
            report("measure", done, temperature_c=heat.hottest_c())
            for meter in everything:
                meter.read()
            if power and not request.period_ms:
                power.read()  # two readings tell the power of a tick, which is none of the inferences'
                ticks_ns.extend((began, perf_counter_ns()))

        timed = _time(loaded, request, report, power, within, tick)
        for meter in around:  # once more while the model is there, in case the window was shorter than a tick
            meter.read()
    figures: dict[str, Any] = {name: value for meter in everything for name, value in meter.figures().items()}
    if figures.get("power"):
        figures["power"]["ticks_ns"] = ticks_ns
    return make_run(request, loaded, load_ns, root, timed, figures)


def make_run(
    request: MeasurementRequest, loaded: Loaded, load_ns: int, root: str, timed: dict[str, Any], figures: dict[str, Any]
) -> Run:
    """The record of one measurement; the bench it is part of fills in the rest, such as the idle power."""
    watts = figures.pop("power", None)
    return Run(
        label=request.label,
        model=os.path.basename(request.model),
        model_sha256=request.model_sha256,
        precision=request.precision,
        runner=request.runner,
        provider=loaded.provider,
        batch=request.batch,
        streams=max(1, len(loaded.lanes)),
        load_ns=load_ns,
        memory_engine_bytes=loaded.engine_bytes,
        power=Power.from_dict(watts) if watts else None,
        idle_power=None,  # measured once, for all runs of a bench
        session=None,
        round=request.round,
        turn=None,
        clock_step_ns=clock_step_ns(),
        environment={**describe_environment(root), **timed.pop("environment")},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **timed,
        **figures,
    )


def import_requirements(runner: ModuleType) -> None:
    """Import what the runner needs, which a bare machine often lacks; this is not counted as loading a model."""
    for name in runner.REQUIRES:
        try:
            import_onnxruntime() if name == "onnxruntime" else import_module(name)
        except ImportError as error:
            raise RunnerError(f"{sys.executable} cannot import {name} ({error}); install it there") from error


def _time(
    loaded: Loaded,
    request: MeasurementRequest,
    report: Report,
    power: PowerMeter | None,
    meters: Sequence[AnyMeter],
    tick: Callable[[float], None],
) -> dict[str, Any]:
    """Run the three regimes; the meters are for the window alone, which nothing keeps from following the warm-up."""
    used = None
    if request.images:
        used = EndToEnd(Camera(request.images, request.preprocessing or {}), loaded, request.batch)
    infer = used.infer if used else loaded.infer
    first, _ = repeat(infer, 1, 0.0)
    environment = {**loaded.environment, **loaded.settle()}
    # Clocks are to be as they will be in the window: so the warm-up has its pauses, too.
    warmed = None if request.period_ms is None else Pace(round(1e6 * request.period_ms))
    pace = None if warmed is None else Pace(warmed.period_ns)
    gpu_ns: list[int] = []
    parts_ns: dict[str, list[int]] = {}

    def read_counters() -> None:
        if loaded.gpu_ns:
            gpu_ns.append(loaded.gpu_ns())
        for name, ns in (used.parts_ns() if used else {}).items():
            parts_ns.setdefault(name, []).append(ns)

    def warming_up(done: float) -> None:
        report("warm up", done)
        if power:
            power.read()  # what it has said so far is old when the window begins

    with ExitStack() as window:
        if power:  # first, so that it ends last: it waits for its sensor, and clocks fall while nothing runs
            window.enter_context(power)
        warm, _ = repeat(infer, request.warmup, request.warmup_seconds, warming_up, pace=warmed)
        if power:
            power.begin()
        for meter in meters:
            window.enter_context(meter)
        if len(loaded.lanes) > 1:
            latencies, wall_ns = repeat_lanes(loaded.lanes, request.samples, request.duration_s, tick)
        else:
            latencies, wall_ns = repeat(infer, request.samples, request.duration_s, tick, read_counters, pace)
    return {
        "environment": environment,
        "first_inference_ns": first[0],
        "warmup": len(warm),
        "latencies_ns": tuple(latencies),
        "gpu_ns": tuple(gpu_ns) or None,
        "wall_ns": wall_ns,
        "period_ns": pace.period_ns if pace else None,
        "missed": pace.missed if pace else None,
        "parts_ns": {name: tuple(times) for name, times in parts_ns.items()} or None,
    }


def repeat(
    infer: Callable[[], object],
    samples: int,
    duration_s: float,
    tick: Callable[[float], None] = lambda done: None,
    after_each: Callable[[], None] = lambda: None,
    pace: Pace | None = None,
) -> tuple[list[int], int]:
    """Run until both `samples` and `duration_s` are reached; return each latency, and the wall time without ticks.

    `after_each` is called after each inference, outside of its time. With `pace`, inferences begin on its schedule, and
    the wall time is all of it, the pauses and what happens in them included.
    """
    min_ns = int(duration_s * 1e9)
    latencies: list[int] = []
    began = perf_counter_ns()
    next_tick, ticks_ns, now = began + TICK_NS, 0, began
    while len(latencies) < samples or now - began - ticks_ns < min_ns:
        if pace:
            pace.wait()
        start = perf_counter_ns()
        infer()
        now = perf_counter_ns()
        latencies.append(now - start)
        if pace:
            pace.done()
        after_each()
        if now >= next_tick:
            tick(min(1.0, len(latencies) / max(samples, 1), (now - began) / max(min_ns, 1)))
            ticked = perf_counter_ns()
            ticks_ns += 0 if pace else ticked - now
            now, next_tick = ticked, ticked + TICK_NS
    if pace:  # the last one has its pause, too
        pace.wait()
        now = perf_counter_ns()
    return latencies, now - began - ticks_ns


def repeat_lanes(
    lanes: Sequence[Lane], samples: int, duration_s: float, tick: Callable[[float], None] = lambda done: None
) -> tuple[list[int], int]:
    """Keep every lane busy, in turn, until both `samples` and `duration_s` are reached; return as `repeat` does.

    A latency lasts from a batch's start until it was seen to be complete, so it includes waiting for its turn. Before a
    tick all lanes finish, and after it they start anew: else a batch under way would seem to take as long as the tick.
    """
    min_ns = int(duration_s * 1e9)
    latencies: list[int] = []
    wall_ns = 0

    def start(lane: Lane) -> int:
        started = perf_counter_ns()
        lane.enqueue()
        return started

    while len(latencies) < samples or wall_ns < min_ns:
        began, before = perf_counter_ns(), len(latencies)
        under_way = deque((lane, start(lane)) for lane in lanes)
        while under_way:
            lane, started = under_way.popleft()
            lane.wait()
            now = perf_counter_ns()
            latencies.append(now - started)
            enough = len(latencies) + len(under_way) >= samples and wall_ns + now - began >= min_ns
            due = now - began >= TICK_NS and len(latencies) - before >= _LANE_BATCHES * len(lanes)
            if not (enough or due):
                under_way.append((lane, start(lane)))
        wall_ns += now - began
        tick(min(1.0, len(latencies) / max(samples, 1), wall_ns / max(min_ns, 1)))
    return latencies, wall_ns


def clock_step_ns() -> int:
    """Return the smallest step seen between readings of the clock; its nominal resolution says little."""
    readings = [perf_counter_ns() for _ in range(1000)]
    return min((b - a for a, b in zip(readings, readings[1:]) if b > a), default=1)
