"""Everything that can be known about a machine without changing it: what the doctor, a bench and a build start from.

What cannot be read is None, or says why not.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Callable

from . import control, jetson
from .__main__ import user
from .files import cache_folder
from .kernel import find_program, read_bytes, read_text
from .libraries import LIBRARIES
from .lock import wait_for_others
from .messages import Send
from .meters import ina3221
from .power import power_meters

# For all libraries together: the host gives up a board that says nothing for two minutes. Importing TensorRT from an SD
# card takes several seconds.
LIBRARIES_S = 60.0
KILLED_S = 2.0  # time that a killed process may need to end
_GPU_NODES = ("dev/nvmap", "dev/nvhost-ctrl-gpu", "dev/dri/renderD*")
_PROGRAMS = ("nvpmodel", "jetson_clocks", "tegrastats")


def examine(send: Send, root: str, owner: str | None = None) -> dict[str, object]:
    """Tell all facts about this machine.

    If an `owner` asks, it waits for the jobs of others: importing TensorRT takes of the processor that they measure.
    It changes nothing, but for one thing: a power mode and clocks that a process left changed which was cut off are put
    back first, and `recovered` says so.
    """
    if owner:
        wait_for_others(root, owner, lambda waiting: send({"progress": waiting}))
    messages: list[str] = []
    clean = control.recover(root, report=messages.append)
    send({"progress": {"stage": "examine", "done": 0.0}})
    processes = {name: _ask(function) for name, function in LIBRARIES.items()}
    deadline = monotonic() + LIBRARIES_S
    facts = {
        **_system(root),
        "rails": jetson.rails(root),
        "power_interval_ms": ina3221.interval_ms(root),
        "meters": power_meters(root),
        "memory": _memory(root),
        "disk": {"cache_free_bytes": _free_bytes(cache_folder()), "cache": cache_folder()},
        "denied": _denied(root),
        "temperatures_c": jetson.temperatures_c(root),
        "trtexec": find_program(root, "trtexec"),
        "programs": {name: find_program(root, name) for name in _PROGRAMS},
        "sudo": control.can_control(root),
        "recovered": {"clean": clean, "messages": messages},
    }
    send({"progress": {"stage": "examine", "done": 0.5}})
    answers = {name: _answer(process, deadline) for name, process in processes.items()}
    runtime = answers["onnxruntime"]
    packages = runtime.get("packages") or {}
    # Last: the kernel tells the GPU's clock only once the GPU has been woken, as CUDA has done by now.
    facts.update(_settings(root))
    facts.update(onnxruntime_packages=packages, clock_s=time())  # last, for a host that compares it with its own
    return {**facts, **answers, "onnxruntime": runtime.get("found")}


def _system(root: str) -> dict[str, object]:
    return {
        "module": jetson.identify(root),
        "l4t": jetson.l4t(root),
        "jetpack": jetson.jetpack(root),
        "ubuntu": _release_name(root),
        "machine": platform.machine(),
        "kernel": read_text(root, "proc/sys/kernel/osrelease") or None,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "in_venv": sys.prefix != sys.base_prefix,
        "user": user(),
        "root": os.geteuid() == 0,
        "hostname": platform.node(),
    }


def _settings(root: str) -> dict[str, object]:
    return {
        "power_mode": jetson.power_mode(root),
        "power_modes": jetson.power_modes(root),
        "default_power_mode": jetson.default_power_mode(root),
        "clocks": jetson.clocks(root),
        "clocks_locked": jetson.clocks_locked(root),
        "memory_clock_locked": jetson.memory_clock_locked(root),
    }


def _memory(root: str) -> dict[str, int | None]:
    keys = {"total_bytes": "MemTotal", "available_bytes": "MemAvailable", "swap_total_bytes": "SwapTotal"}
    return {name: read_bytes(root, "proc/meminfo", key) for name, key in keys.items()}


def _denied(root: str) -> list[str]:
    """Return the devices of the GPU that this user may not open, as those who are in no group `video` or `render`."""
    nodes = [node for pattern in _GPU_NODES for node in sorted(Path(root).glob(pattern))]
    return [f"/{node.relative_to(root)}" for node in nodes if not os.access(node, os.R_OK)]


def _free_bytes(folder: str) -> int | None:
    """Return the space for files that the user may write in `folder`, which may have to be made first."""
    for path in (Path(folder), *Path(folder).parents):
        if path.is_dir():
            disk = os.statvfs(path)
            return disk.f_bavail * disk.f_frsize
    return None


def _release_name(root: str) -> str | None:
    for line in (read_text(root, "etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return None


def _ask(function: Callable[[], None]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        control.own_command(function), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _answer(process: subprocess.Popen[bytes], deadline: float) -> dict[str, object]:
    try:
        output, stderr = process.communicate(timeout=max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in a driver cannot be killed
            process.wait(KILLED_S)
        for pipe in (process.stdout, process.stderr):
            assert pipe
            pipe.close()
        return {"error": f"no answer within {LIBRARIES_S:.0f} s"}
    try:
        answer: dict[str, object] = json.loads(output)
        return answer
    except ValueError:
        lines = stderr.decode("utf-8", errors="replace").strip().splitlines()
        code = process.returncode
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return {"error": f"{ending}: {lines[-1] if lines else 'it said nothing'}"}
