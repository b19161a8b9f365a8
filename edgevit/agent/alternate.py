"""Several models in one process, each for some milliseconds in turn: what slows the machine slows them all alike.

Models in processes of their own run seconds apart, and a shared host slows down in bursts of seconds: such a burst
slows one model alone. Here it lasts for many visits of every model. A visit begins with inferences that do not count,
as the caches hold what the other models left there. Its length is a number of inferences and no time, as other programs
may take most of any time. What belongs to the process and to no model is not measured: its memory, how busy the GPU
was, and the power, as the sensors average over many visits.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Sequence

from .measure import TICK_NS, MeasurementRequest, Report, import_requirements, make_run, repeat
from .meters import AnyMeter, clocks, load, nvpmodel, thermal
from .records import Run
from .runners import Loaded, import_runner, open_shared

# A visit has as many inferences as take these times when nothing slows them, at least one of each kind: VISIT_NS those
# that count, COLD_NS those before them. Of models of 7 and 4 MB in turn on a CPU, the larger took 15 to 20 % longer
# after 2 to 5 ms, 1 to 2 % after 5 to 10 ms.
VISIT_NS, COLD_NS = 50_000_000, 10_000_000
_SHARED = (
    *("memory_peak_rss_bytes", "memory_available_before_bytes", "memory_available_min_bytes"),
    *("memory_available_after_bytes", "memory_nvmap_bytes", "gpu_load_permille"),
)


@dataclass
class _Visited:
    """A model, and what its visits gave."""

    request: MeasurementRequest
    loaded: Loaded
    load_ns: int
    first_ns: int
    environment: dict[str, str]
    warmup: int = 0
    fastest_ns: int = 0
    latencies: list[int] = field(default_factory=list)
    gpu_ns: list[int] = field(default_factory=list)
    wall_ns: int = 0
    own_ns: int = 0  # processor time of this process in the timed window

    @property
    def done(self) -> float:
        """The share of the samples and of the duration that has been measured, from 0 to 1."""
        duration_ns = self.request.duration_s * 1e9
        return min(1.0, len(self.latencies) / max(self.request.samples, 1), self.wall_ns / max(duration_ns, 1))

    def warm_up(self, report: Report) -> None:
        request, tick = self.request, lambda done: report("warm up", done)
        warm, _ = repeat(self.loaded.infer, request.warmup, request.warmup_seconds, tick)
        self.warmup, self.fastest_ns = len(warm), min([self.first_ns, *warm])

    def visit(self) -> None:
        repeat(self.loaded.infer, self._lasting(COLD_NS), 0.0)
        before_ns = time.process_time_ns()
        latencies, wall_ns = repeat(self.loaded.infer, self._lasting(VISIT_NS), 0.0, after_each=self._read_gpu_time)
        self.own_ns += time.process_time_ns() - before_ns
        self.latencies += latencies
        self.wall_ns += wall_ns

    def _lasting(self, nanoseconds: int) -> int:
        """The number of inferences that take this time."""
        return max(1, round(nanoseconds / self.fastest_ns))

    def _read_gpu_time(self) -> None:
        if self.loaded.gpu_ns:
            self.gpu_ns.append(self.loaded.gpu_ns())

    def timed(self) -> dict[str, Any]:
        return {
            "environment": dict(self.environment),
            "first_inference_ns": self.first_ns,
            "warmup": self.warmup,
            "latencies_ns": tuple(self.latencies),
            "gpu_ns": tuple(self.gpu_ns) or None,
            "wall_ns": self.wall_ns,
            "visit": self._lasting(VISIT_NS),
        }


def alternate(requests: Sequence[MeasurementRequest], report: Report, root: str = "/") -> list[Run]:
    """Measure models that one runner runs, until each has its samples and its duration; a run of each, in this order.

    Raises:
        AloneError: the runtime cannot have several models in one process without one slowing the others.
        RunnerError: a model cannot be run as asked.
    """
    runner = import_runner(requests[0].runner)
    heat, busy = thermal.Meter(root), load.Meter(root)
    within: tuple[AnyMeter, ...] = (heat, clocks.Meter(root), busy)
    random = Random(requests[0].round or 0)
    with ExitStack() as opened:
        mode: AnyMeter = opened.enter_context(nvpmodel.Meter(root))
        report("load", 0.0)
        import_requirements(runner)
        models = [_open(runner, request, opened) for request in requests]
        for model in models:
            model.warm_up(report)
        with ExitStack() as window:
            for meter in within:
                window.enter_context(meter)
            began = next_tick = perf_counter_ns()
            while any(model.done < 1 for model in models):
                for model in random.sample(models, len(models)):
                    model.visit()
                if perf_counter_ns() >= next_tick:
                    report("measure", min(model.done for model in models), temperature_c=heat.hottest_c())
                    for meter in (mode, *within):
                        meter.read()
                    next_tick = perf_counter_ns() + TICK_NS
            window_ns = perf_counter_ns() - began
    figures = {name: value for meter in (mode, *within) for name, value in meter.figures().items()}
    return [_run(model, requests, root, figures, window_ns) for model in models]


def _open(runner: ModuleType, request: MeasurementRequest, opened: ExitStack) -> _Visited:
    started = perf_counter_ns()
    loaded = opened.enter_context(open_shared(runner, request.model, request.batch, request.options, request.label))
    load_ns = perf_counter_ns() - started
    first, _ = repeat(loaded.infer, 1, 0.0)
    return _Visited(request, loaded, load_ns, first[0], {**loaded.environment, **loaded.settle()})


def _run(
    model: _Visited, requests: Sequence[MeasurementRequest], root: str, shared: dict[str, Any], window_ns: int
) -> Run:
    figures = {**shared, **dict.fromkeys(_SHARED), "cpu_own_ns": model.own_ns}
    if shared["cpu_busy_ns"] is not None:  # what others took meanwhile is shared out by time: ticks are of 10 ms
        busy = max(0, shared["cpu_busy_ns"] - shared["cpu_own_ns"]) / window_ns
        figures["cpu_busy_ns"] = model.own_ns + round(busy * model.wall_ns)
    others = tuple(request.label for request in requests if request is not model.request)
    return make_run(model.request, model.loaded, model.load_ns, root, {**model.timed(), "beside": others}, figures)
