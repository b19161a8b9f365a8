"""Have trtexec, NVIDIA's own program, measure the same engine: a second opinion on what edgevit measured.

Its defaults changed with TensorRT 11, to a CUDA graph, a spinning wait and no transfers; before, these were options.
With one stream it keeps two batches in flight, so that its throughput is more than one over its latency.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess

from .control import controlled
from .execution import import_tensorrt, make_log, open_engine
from .kernel import find_program
from .messages import Send
from .runners import RunnerError

_HELP_S = 60.0
STARTING_S = 300.0  # time beyond that of the measurement, to load TensorRT and the engine from an SD card
_WARM_UP_MS = 500

# Its names of the lines in the summary, and ours; some releases leave out what does not take place.
_TIMES = {
    "Latency": "latency_ms",
    "Enqueue Time": "enqueue_ms",
    "H2D Latency": "h2d_ms",
    "GPU Compute Time": "gpu_ms",
    "D2H Latency": "d2h_ms",
}
_REQUIRED = ("Latency", "GPU Compute Time")
# Its names within such a line, and ours.
_STATISTICS = {
    "min": "min",
    "max": "max",
    "mean": "mean",
    "median": "median",
    "percentile(90%)": "p90",
    "percentile(95%)": "p95",
    "percentile(99%)": "p99",
}

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,3})?"
_LINE = re.compile(r"^(?:\[[^\]\n]{1,40}\] )?\[I\] ([A-Z][A-Za-z0-9 ]{2,30}): (.*)$", re.MULTILINE)
_STATISTIC = re.compile(rf"([a-z]+(?:\(\d\d?%\))?) = ({_NUMBER}) ms")
_THROUGHPUT = re.compile(rf"({_NUMBER}) qps")
_BANNER = re.compile(r"\[TensorRT v(\d{4,6})\]")
_ERROR = re.compile(r"^(?:\[[^\]\n]{1,40}\] )?\[E\] (.*)$", re.MULTILINE)


def trtexec(
    send: Send,
    root: str,
    *,
    engine: str,
    batch: int,
    seconds: float,
    streams: int = 1,
    power_mode: str | None = None,
    lock_clocks: bool = False,
) -> dict[str, object]:
    """Run trtexec on an engine, in this power mode and with the clocks locked if asked, and return its summary.

    Raises:
        RunnerError: there is none, it fails, or it prints what is not known here; or the board cannot be set so.
    """
    program = find_program(root, "trtexec")
    if program is None:
        raise RunnerError("no trtexec on this board; `sudo apt install libnvinfer-bin` brings it")
    help_text = _run([program, "--help"], _HELP_S)
    command = [program, *_arguments(help_text, _shapes(engine, batch), engine, seconds, streams)]

    def report(stage: str) -> None:
        send({"progress": {"stage": stage, "done": 0.0}})

    with controlled(root, power_mode=power_mode, lock_clocks=lock_clocks, report=report) as changed:
        report("trtexec")
        summary = parse_summary(_run(command, seconds + STARTING_S))
    return {"command": shlex.join(command), "changed": changed, **summary}


def _shapes(path: str, batch: int) -> str | None:
    """Return the shapes to run at, as trtexec takes them; a fixed engine takes none."""
    trt = import_tensorrt()
    with open_engine(trt, make_log(trt), path) as engine:
        engine.check_batch(batch)
        if not engine.dynamic:
            return None
        return ",".join(
            f"{tensor.name}:{'x'.join(str(size) for size in (batch, *tensor.shape[1:]))}" for tensor in engine.inputs
        )


def _arguments(help_text: str, shapes: str | None, engine: str, seconds: float, streams: int) -> list[str]:
    """Ask for what edgevit measures, in the words of this release's help."""
    arguments = [f"--loadEngine={engine}", f"--duration={seconds:g}", f"--warmUp={_WARM_UP_MS}"]
    arguments.append("--percentile=90,95,99")
    if shapes:
        arguments.append(f"--shapes={shapes}")
    if streams > 1:
        arguments.append(f"--infStreams={streams}" if "--infStreams" in help_text else f"--streams={streams}")
    if "--noCudaGraph" not in help_text:  # a release that has to be told not to is one that does
        arguments += ["--useCudaGraph", "--useSpinWait", "--noDataTransfers"]
    return arguments


def _run(command: list[str], timeout_s: float) -> str:
    """Return what it prints, errors among it.

    Raises: RunnerError.
    """
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise RunnerError(f"cannot run {command[0]} ({error.strerror}); see `ls -l {command[0]}`") from error
    except subprocess.TimeoutExpired:
        raise RunnerError(f"{name} did not end within {timeout_s:.0f} s; try it there: {shlex.join(command)}") from None
    text = done.stdout.decode("utf-8", errors="replace")
    if done.returncode:
        match = _ERROR.search(text)
        reason = match.group(1).strip() if match else f"exit code {done.returncode}"
        raise RunnerError(f"{name} failed: {reason[:200]}; try it there: {shlex.join(command)}")
    return text


def parse_summary(text: str) -> dict[str, object]:
    """Return `version`, `throughput_qps` and the times of a run.

    Raises:
        RunnerError: a line that must be there is not, or says something unknown.
    """
    lines = dict(_LINE.findall(text))
    throughput = _THROUGHPUT.match(lines.get("Throughput", ""))
    if not throughput:
        raise RunnerError("trtexec printed no throughput; this edgevit does not know its output")
    banner = _BANNER.search(text)
    return {
        "version": _version(banner.group(1)) if banner else None,
        "throughput_qps": _positive("throughput", float(throughput.group(1))),
        **{field: _times(label, lines.get(label)) for label, field in _TIMES.items()},
    }


def _times(name: str, line: str | None) -> dict[str, float] | None:
    if line is None and name not in _REQUIRED:
        return None
    times = {_STATISTICS[key]: float(value) for key, value in _STATISTIC.findall(line or "") if key in _STATISTICS}
    missing = [label for label, field in _STATISTICS.items() if field not in times]
    if missing:
        raise RunnerError(f"trtexec printed no {missing[0]} of {name!r}; this edgevit does not know its output")
    if name in _REQUIRED:
        _positive(name, times["mean"])
    return times


def _positive(name: str, value: float) -> float:
    """A copy that did not take place took 0 ms, and rightly so; a computation did not."""
    if not 0 < value < math.inf:
        raise RunnerError(f"trtexec printed a {name} of {value:g}; run it again")
    return value


def _version(digits: str) -> str:
    """Return 8.5.2 for 8502, and 10.3.0 for 100300."""
    number = int(digits)
    if number >= 100000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
