"""Where the time of an inference goes: each layer timed by the runtime's own profiler, in a process of its own.

A profiler slows what it watches: by the events that it records between layers, and as it keeps kernels from running
into each other. So its times are shares of a profiled inference, and no latency of the model.
"""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter_ns

from .environment import describe_environment
from .measure import MeasurementRequest, Report, import_requirements, repeat
from .runners import RunnerError, has_profiler, import_runner, runner_names

MOST = 100  # inferences: of 400 nodes each, a trace has some 30 MB


def profile(request: MeasurementRequest, report: Report, root: str = "/") -> dict[str, object]:
    """Time the layers of up to MOST inferences.

    Returns `inferences_ns`, the whole of each by `clock` ("gpu" or "host"), `layers` as dicts of `Layer`, `provider`
    and `environment`.

    Raises: RunnerError.
    """
    runner = import_runner(request.runner)
    if not has_profiler(request.runner):
        names = ", ".join(name for name in runner_names() if has_profiler(name))
        raise RunnerError(f"the runner {request.runner!r} cannot time layers; those that can: {names}")
    report("load", 0.0)
    import_requirements(runner)
    count = min(request.samples, MOST)
    whole: list[int] = []
    with runner.open_profiler(request.model, request.batch, **request.options) as profiled:
        warm_up = lambda done: report("warm up", done)  # noqa: E731
        repeat(profiled.infer, max(1, request.warmup), request.warmup_seconds, warm_up)
        for number in range(count):
            started = perf_counter_ns()
            profiled.infer()
            ended = perf_counter_ns()
            whole.append(profiled.gpu_ns() if profiled.gpu_ns else ended - started)
            profiled.gather()
            report("time layers", number / count)
        layers = profiled.layers(count)
        return {
            "inferences_ns": whole,
            "clock": "gpu" if profiled.gpu_ns else "host",
            "layers": [asdict(layer) for layer in layers],
            "provider": profiled.provider,
            "environment": {**describe_environment(root), **profiled.environment},
        }
