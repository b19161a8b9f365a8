"""A bench: the board is set as asked, its idle power taken, then each measurement made in a fresh process of its own.

With a process each, no memory, thread or CUDA context of one batch size affects the figures of the next. Several models
may alternate in one process where only the ratios of their times are asked for.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
import uuid
from dataclasses import asdict
from time import perf_counter_ns
from typing import IO, Any, Callable, Dict, Iterator, Sequence

from .__main__ import main
from .control import controlled, own_command
from .kernel import open_scratch
from .messages import ProgressMessage, Reply, Send
from .power import power_meter
from .records import Power

TICK_S = 0.2  # pause between two readings of the idle power
_TAIL_LINES = 5  # number of lines of a measurement's stderr that are shown when it dies
# Without a line of a measurement, before it is ended: one that hangs would keep the board from all others for ever. It
# says nothing while it loads a model, for which a GPU may compile for many minutes.
SILENCE_S = 3600.0

_Request = Dict[str, Any]  # the fields of a `MeasurementRequest`, which the process that measures reads


def bench(
    send: Send,
    root: str,
    *,
    requests: Sequence[Sequence[_Request]],
    profiled: Sequence[_Request] = (),
    idle_s: float = 0.0,
    power_mode: str | None = None,
    lock_clocks: bool = False,
) -> dict[str, object]:
    """Make one measurement after another; the first that fails ends the bench, and what was measured is kept.

    `requests` are those of each process: of one model, or of several that alternate. The layers of those `profiled` are
    timed after all plain runs, each again in a process of its own.

    Returns `runs` and `profiles` as dicts, what was `changed` on the board for them, `failed`: the error of the process
    that failed, with labels and batch; and `alone`: why models had processes of their own all the same.
    """
    runs: list[dict[str, object]] = []
    profiles: list[dict[str, object]] = []
    failed = alone = None
    session = uuid.uuid4().hex[:16]

    def report(stage: str, done: float = 0.0, **figures: Any) -> None:
        send({"progress": {"stage": stage, "done": done, **figures}})

    with controlled(root, power_mode=power_mode, lock_clocks=lock_clocks, report=report) as changed:
        power = _idle_power(root, requests[0][0], idle_s, report) if requests and idle_s > 0 else None
        idle = {"idle_power": asdict(power) if power else None}
        todo = [*((False, alike) for alike in requests), *((True, [request]) for request in profiled)]
        for number, (profile, alike) in enumerate(todo, 1):
            place = {"run": number, "of": len(todo), "batch": alike[0]["batch"]}
            tell = lambda progress, place=place: report(**{**progress, **place})  # noqa: E731
            answer = _ask(root, "profile", alike[0], tell) if profile else _measure(root, alike, tell)
            if "error" in answer:
                labels = [request["label"] for request in alike]
                failed = {"labels": labels, "batch": alike[0]["batch"], **answer["error"]}
                break
            if profile:
                profiles.append({**answer["result"], "session": session})
                continue
            alone = alone or answer["result"]["alone"]
            once = {**idle, "turn": number, "session": session}
            runs += [{**run, **once} for run in answer["result"]["runs"]]
    return {"runs": runs, "profiles": profiles, "changed": changed, "failed": failed, "alone": alone}


def _measure(root: str, requests: Sequence[_Request], tell: Callable[[ProgressMessage], None]) -> Reply:
    """Measure a model, or several that alternate in one process or, where they cannot, one after the other.

    Return `runs`, and `alone`: why they could not; or an `error`.
    """
    alone = None
    if len(requests) > 1:
        answer = _ask(root, "alternate", {"requests": requests}, tell)
        if "error" in answer or answer["result"]["alone"] is None:
            return answer
        alone = answer["result"]["alone"]
    answers = []
    for request in requests:
        answers.append(_ask(root, "measure", request, tell))
        if "error" in answers[-1]:
            return answers[-1]
    return {"result": {"runs": [answer["result"] for answer in answers], "alone": alone}}


def _idle_power(root: str, request: _Request, seconds: float, report: Callable[..., None]) -> Power | None:
    """Read the rails while nothing of ours runs."""
    meter = power_meter(root, request["power_meter"], request["total_rails"])
    if meter is None:
        return None
    began = perf_counter_ns()
    with meter:
        while (elapsed := (perf_counter_ns() - began) / 1e9) < seconds:
            report("idle power", min(1.0, elapsed / seconds))
            time.sleep(min(TICK_S, seconds - elapsed))
            meter.read()
    figures = meter.figures()["power"]
    return Power.from_dict(figures) if figures else None


def _lines(stdout: IO[bytes]) -> Iterator[bytes]:
    """Raises: TimeoutError."""
    unread = b""
    while select.select([stdout], [], [], SILENCE_S)[0]:
        chunk = os.read(stdout.fileno(), 1 << 20)
        if not chunk:
            return
        *lines, unread = (unread + chunk).split(b"\n")
        yield from lines
    raise TimeoutError


def _ask(root: str, method: str, request: _Request, on_progress: Callable[[ProgressMessage], None]) -> Reply:
    """Make one measurement in another process of this very program; return its `result` or its `error`."""
    # A file for what it says: a pipe that nobody reads would fill up and stop it.
    with open_scratch() as stderr, subprocess.Popen(
        own_command(main),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "EDGEVIT_BOARD_ROOT": root},
    ) as process:
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps({"method": method, "args": request}).encode() + b"\n")
            process.stdin.close()
            for line in _lines(process.stdout):
                reply: Reply = json.loads(line)
                if "progress" not in reply:
                    return reply
                on_progress(reply["progress"])
        except TimeoutError:
            process.kill()
            message = f"the measurement gave no sign of life for {SILENCE_S / 60:.0f} min and was ended"
            return {"error": {"message": message, "traceback": ""}}
        finally:
            process.terminate()
        code = process.wait()
        stderr.seek(0)
        stderr_text = stderr.read().decode("utf-8", "replace").strip()
        tail = " | ".join(stderr_text.splitlines()[-_TAIL_LINES:]) or "it said nothing"
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        hint = "; out of memory? try a smaller --batch" if code == -9 else ""
        return {"error": {"message": f"the measurement died ({ending}): {tail}{hint}", "traceback": stderr_text}}
